// FFI handlers of quantization.
#include <cuda_runtime.h>

#include "../extensions.h"
#include "transformer_engine/cast.h"

namespace transformer_engine {
namespace jax {

Error_Type DBiasQuantizeFFI(cudaStream_t stream, Buffer_Type input_buf, Result_Type output_buf,
                            Result_Type scale_inv_buf, Result_Type dbias_buf,
                            JAXX_Scaling_Mode scaling_mode, bool is_dbias) {
  NVTE_CHECK(scaling_mode != JAXX_Scaling_Mode::MXFP8_1D_SCALING,
             "MXFP8 scales blocks, which this quantizer does not.");
  auto input_tensor = as_tensor(input_buf);
  auto output_tensor = as_tensor(*output_buf);
  auto scale_inv_tensor = as_tensor(*scale_inv_buf);
  nvte_quantize(input_tensor.data(), output_tensor.data(), scale_inv_tensor.data(), stream);
  if (is_dbias) {
    auto dbias_tensor = as_tensor(*dbias_buf);
    nvte_reduce_dbias(input_tensor.data(), dbias_tensor.data(), stream);
  }
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DBiasQuantizeHandler, DBiasQuantizeFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // input
                                  .Ret<Buffer_Type>()      // output
                                  .Ret<Buffer_Type>()      // scale_inv
                                  .Ret<Buffer_Type>()      // dbias
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode")
                                  .Attr<bool>("is_dbias"),
                              FFI_CudaGraph_Traits);

Error_Type DequantizeFFI(cudaStream_t stream, Buffer_Type input_buf, Buffer_Type scale_inv_buf,
                         Result_Type output_buf) {
  auto input_tensor = as_tensor(input_buf);
  auto scale_inv_tensor = as_tensor(scale_inv_buf);
  auto output_tensor = as_tensor(*output_buf);
  nvte_dequantize(input_tensor.data(), scale_inv_tensor.data(), output_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DequantizeHandler, DequantizeFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // input
                                  .Arg<Buffer_Type>()      // scale_inv
                                  .Ret<Buffer_Type>(),     // output
                              FFI_CudaGraph_Traits);

// Reads the sizes on the host, so it waits for the stream.
Error_Type GroupedQuantizeFFI(cudaStream_t stream, Buffer_Type inputs, Buffer_Type group_sizes,
                              Result_Type outputs, Result_Type scale_invs, int64_t flatten_axis) {
  NVTE_CHECK(flatten_axis == 1, "Unsupported flatten_axis: ", flatten_axis);
  std::vector<int32_t> sizes(group_sizes.element_count());
  NVTE_CHECK_CUDA(cudaMemcpyAsync(sizes.data(), group_sizes.untyped_data(),
                                  sizes.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream));
  NVTE_CHECK_CUDA(cudaStreamSynchronize(stream));
  int64_t rows = 0;
  for (int32_t size : sizes) rows += size;
  NVTE_CHECK(rows == inputs.dimensions()[0], "The groups do not add up to the input's rows.");
  auto input_tensor = as_tensor(inputs);
  auto sizes_tensor = as_tensor(group_sizes);
  auto output_tensor = as_tensor(*outputs);
  auto scale_inv_tensor = as_tensor(*scale_invs);
  nvte_group_quantize(input_tensor.data(), sizes_tensor.data(), output_tensor.data(),
                      scale_inv_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    GroupedQuantizeHandler, GroupedQuantizeFFI,
    FFI::Bind()
        .Ctx<FFI_Stream_Type>()  // stream
        .Arg<Buffer_Type>()      // input
        .Arg<Buffer_Type>()      // group_sizes
        .Ret<Buffer_Type>()      // output
        .Ret<Buffer_Type>()      // scale_inv
        .Attr<int64_t>("flatten_axis"));

Error_Type GroupedQuantizeV2FFI(cudaStream_t stream, Buffer_Type inputs, Buffer_Type group_sizes,
                                Result_Type outputs, Result_Type scale_invs,
                                int64_t flatten_axis) {
  NVTE_CHECK(flatten_axis == 1, "Unsupported flatten_axis: ", flatten_axis);
  auto input_tensor = as_tensor(inputs);
  auto sizes_tensor = as_tensor(group_sizes);
  auto output_tensor = as_tensor(*outputs);
  auto scale_inv_tensor = as_tensor(*scale_invs);
  nvte_group_quantize(input_tensor.data(), sizes_tensor.data(), output_tensor.data(),
                      scale_inv_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(GroupedQuantizeV2Handler, GroupedQuantizeV2FFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // inputs
                                  .Arg<Buffer_Type>()      // group_sizes (int32)
                                  .Ret<Buffer_Type>()      // outputs
                                  .Ret<Buffer_Type>()      // scale_invs
                                  .Attr<int64_t>("flatten_axis"),
                              FFI_CudaGraph_Traits);

}  // namespace jax
}  // namespace transformer_engine
