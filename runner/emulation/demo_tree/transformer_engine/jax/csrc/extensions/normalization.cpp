// FFI handlers of the norms.
#include "transformer_engine/normalization.h"

#include <cuda_runtime.h>

#include "../extensions.h"

namespace transformer_engine {
namespace jax {

Error_Type NormForwardFFI(cudaStream_t stream, Buffer_Type x_buf, Buffer_Type gamma_buf,
                          Buffer_Type beta_buf, Result_Type output_buf, Result_Type mu_buf,
                          Result_Type rsigma_buf, int64_t norm_type, double epsilon) {
  NVTE_CHECK(static_cast<NVTE_Norm_Type>(norm_type) == NVTE_Norm_Type::LayerNorm,
             "Unsupported norm type: ", norm_type);
  auto x_tensor = as_tensor(x_buf);
  auto gamma_tensor = as_tensor(gamma_buf);
  auto beta_tensor = as_tensor(beta_buf);
  auto output_tensor = as_tensor(*output_buf);
  auto mu_tensor = as_tensor(*mu_buf);
  auto rsigma_tensor = as_tensor(*rsigma_buf);
  nvte_layernorm_fwd(x_tensor.data(), gamma_tensor.data(), beta_tensor.data(),
                     static_cast<float>(epsilon), output_tensor.data(), mu_tensor.data(),
                     rsigma_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormForwardHandler, NormForwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // x
                                  .Arg<Buffer_Type>()      // gamma
                                  .Arg<Buffer_Type>()      // beta
                                  .Ret<Buffer_Type>()      // output
                                  .Ret<Buffer_Type>()      // mu
                                  .Ret<Buffer_Type>()      // rsigma
                                  .Attr<int64_t>("norm_type")
                                  .Attr<double>("epsilon"),
                              FFI_CudaGraph_Traits);

Error_Type NormBackwardFFI(cudaStream_t stream, Buffer_Type dz_buf, Buffer_Type x_buf,
                           Buffer_Type mu_buf, Buffer_Type rsigma_buf, Buffer_Type gamma_buf,
                           Result_Type xgrad_buf, Result_Type wgrad_buf, Result_Type dbeta_buf,
                           int64_t norm_type) {
  NVTE_CHECK(static_cast<NVTE_Norm_Type>(norm_type) == NVTE_Norm_Type::LayerNorm,
             "Unsupported norm type: ", norm_type);
  auto dz_tensor = as_tensor(dz_buf);
  auto x_tensor = as_tensor(x_buf);
  auto mu_tensor = as_tensor(mu_buf);
  auto rsigma_tensor = as_tensor(rsigma_buf);
  auto gamma_tensor = as_tensor(gamma_buf);
  auto xgrad_tensor = as_tensor(*xgrad_buf);
  auto wgrad_tensor = as_tensor(*wgrad_buf);
  auto dbeta_tensor = as_tensor(*dbeta_buf);
  nvte_layernorm_bwd(dz_tensor.data(), x_tensor.data(), mu_tensor.data(), rsigma_tensor.data(),
                     gamma_tensor.data(), xgrad_tensor.data(), wgrad_tensor.data(),
                     dbeta_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(NormBackwardHandler, NormBackwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // dz
                                  .Arg<Buffer_Type>()      // x
                                  .Arg<Buffer_Type>()      // mu
                                  .Arg<Buffer_Type>()      // rsigma
                                  .Arg<Buffer_Type>()      // gamma
                                  .Ret<Buffer_Type>()      // xgrad
                                  .Ret<Buffer_Type>()      // wgrad
                                  .Ret<Buffer_Type>()      // dbeta
                                  .Attr<int64_t>("norm_type"),
                              FFI_CudaGraph_Traits);

}  // namespace jax
}  // namespace transformer_engine
