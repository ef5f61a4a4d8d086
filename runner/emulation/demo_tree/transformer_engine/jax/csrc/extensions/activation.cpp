// FFI handlers of the activations.
#include "transformer_engine/activation.h"

#include <cuda_runtime.h>

#include "../extensions.h"
#include "transformer_engine/cast.h"

namespace transformer_engine {
namespace jax {

Error_Type ActLuFFI(cudaStream_t stream, Buffer_Type input_buf, Result_Type output_buf,
                    int64_t act_enum, JAXX_Scaling_Mode scaling_mode) {
  auto input_tensor = as_tensor(input_buf);
  auto output_tensor = as_tensor(*output_buf);
  auto act_type = static_cast<NVTE_Activation_Type>(act_enum);
  nvte_act(input_tensor.data(), output_tensor.data(), act_type, is_low_precision(scaling_mode),
           stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(ActLuHandler, ActLuFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // input
                                  .Ret<Buffer_Type>()      // output
                                  .Attr<int64_t>("act_enum")
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode"),
                              FFI_CudaGraph_Traits);

Error_Type DActLuDBiasQuantizeFFI(cudaStream_t stream, Buffer_Type grad_buf,
                                  Buffer_Type act_input_buf, Result_Type output_buf,
                                  Result_Type dbias_buf, int64_t act_enum,
                                  JAXX_Scaling_Mode scaling_mode, bool is_dbias) {
  auto grad_tensor = as_tensor(grad_buf);
  auto act_input_tensor = as_tensor(act_input_buf);
  auto output_tensor = as_tensor(*output_buf);
  auto act_type = static_cast<NVTE_Activation_Type>(act_enum);
  nvte_dact(grad_tensor.data(), act_input_tensor.data(), output_tensor.data(), act_type,
            is_low_precision(scaling_mode), stream);
  if (is_dbias) {
    auto dbias_tensor = as_tensor(*dbias_buf);
    nvte_reduce_dbias(output_tensor.data(), dbias_tensor.data(), stream);
  }
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(DActLuDBiasQuantizeHandler, DActLuDBiasQuantizeFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // gradient
                                  .Arg<Buffer_Type>()      // act input
                                  .Ret<Buffer_Type>()      // output
                                  .Ret<Buffer_Type>()      // dbias
                                  .Attr<int64_t>("act_enum")
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode")
                                  .Attr<bool>("is_dbias"),
                              FFI_CudaGraph_Traits);

}  // namespace jax
}  // namespace transformer_engine
