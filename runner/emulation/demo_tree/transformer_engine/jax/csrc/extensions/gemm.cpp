// FFI handler of the matrix product.
#include "transformer_engine/gemm.h"

#include "../extensions.h"

namespace transformer_engine {
namespace jax {

Error_Type GemmFFI(cudaStream_t stream, Buffer_Type lhs_buf, Buffer_Type rhs_buf,
                   Result_Type output_buf, bool lhs_transposed, bool rhs_transposed,
                   JAXX_Scaling_Mode scaling_mode) {
  auto lhs_tensor = as_tensor(lhs_buf);
  auto rhs_tensor = as_tensor(rhs_buf);
  auto output_tensor = as_tensor(*output_buf);
  nvte_gemm(lhs_tensor.data(), lhs_transposed, rhs_tensor.data(), rhs_transposed,
            output_tensor.data(), is_low_precision(scaling_mode), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(GemmHandler, GemmFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // lhs
                                  .Arg<Buffer_Type>()      // rhs
                                  .Ret<Buffer_Type>()      // output
                                  .Attr<bool>("lhs_transposed")
                                  .Attr<bool>("rhs_transposed")
                                  .Attr<JAXX_Scaling_Mode>("scaling_mode"),
                              FFI_CudaGraph_Traits);

}  // namespace jax
}  // namespace transformer_engine
