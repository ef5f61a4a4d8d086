// FFI handlers of the router.
#include "../extensions.h"
#include "transformer_engine/fused_router.h"

namespace transformer_engine {
namespace jax {

Error_Type FusedTopkWithScoreFunctionForwardFFI(
    cudaStream_t stream,
    Buffer_Type logits_buf,       // [num_tokens, num_experts]
    Result_Type probs_buf,        // [num_tokens, num_experts]
    Result_Type routing_map_buf,  // [num_tokens, num_experts]
    int64_t topk, double scaling_factor) {
  auto logits_tensor = as_tensor(logits_buf);
  auto probs_tensor = as_tensor(*probs_buf);
  auto routing_map_tensor = as_tensor(*routing_map_buf);
  nvte_fused_topk_with_score_function_forward(
      logits_tensor.data(), static_cast<int>(topk), static_cast<float>(scaling_factor),
      probs_tensor.data(), routing_map_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(FusedTopkWithScoreFunctionForwardHandler,
                              FusedTopkWithScoreFunctionForwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // logits
                                  .Ret<Buffer_Type>()      // probs
                                  .Ret<Buffer_Type>()      // routing_map
                                  .Attr<int64_t>("topk")
                                  .Attr<double>("scaling_factor"),
                              FFI_CudaGraph_Traits);

Error_Type FusedTopkWithScoreFunctionBackwardFFI(cudaStream_t stream, Buffer_Type routing_map_buf,
                                                 Buffer_Type probs_buf, Buffer_Type grad_probs_buf,
                                                 Result_Type grad_logits_buf, int64_t topk,
                                                 double scaling_factor) {
  (void)topk;  // the routing map already says which experts were chosen
  auto routing_map_tensor = as_tensor(routing_map_buf);
  auto probs_tensor = as_tensor(probs_buf);
  auto grad_probs_tensor = as_tensor(grad_probs_buf);
  auto grad_logits_tensor = as_tensor(*grad_logits_buf);
  nvte_fused_topk_with_score_function_backward(
      routing_map_tensor.data(), probs_tensor.data(), grad_probs_tensor.data(),
      static_cast<float>(scaling_factor), grad_logits_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(FusedTopkWithScoreFunctionBackwardHandler,
                              FusedTopkWithScoreFunctionBackwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // routing_map
                                  .Arg<Buffer_Type>()      // probs
                                  .Arg<Buffer_Type>()      // grad_probs
                                  .Ret<Buffer_Type>()      // grad_logits
                                  .Attr<int64_t>("topk")
                                  .Attr<double>("scaling_factor"),
                              FFI_CudaGraph_Traits);

Error_Type FusedMoEAuxLossForwardFFI(cudaStream_t stream, Buffer_Type probs_buf,
                                     Buffer_Type tokens_per_expert_buf, Result_Type aux_loss_buf,
                                     Result_Type const_buf, int64_t topk, double coeff) {
  auto probs_tensor = as_tensor(probs_buf);
  auto tokens_per_expert_tensor = as_tensor(tokens_per_expert_buf);
  auto aux_loss_tensor = as_tensor(*aux_loss_buf);
  auto const_tensor = as_tensor(*const_buf);
  nvte_fused_moe_aux_loss_forward(probs_tensor.data(), tokens_per_expert_tensor.data(),
                                  static_cast<int>(topk), static_cast<float>(coeff),
                                  aux_loss_tensor.data(), const_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(FusedMoEAuxLossForwardHandler, FusedMoEAuxLossForwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // probs
                                  .Arg<Buffer_Type>()      // tokens_per_expert
                                  .Ret<Buffer_Type>()      // aux_loss
                                  .Ret<Buffer_Type>()      // const_buf
                                  .Attr<int64_t>("topk")
                                  .Attr<double>("coeff"),
                              FFI_CudaGraph_Traits);

Error_Type FusedMoEAuxLossBackwardFFI(cudaStream_t stream, Buffer_Type const_buf_in,
                                      Buffer_Type tokens_per_expert_buf,
                                      Buffer_Type grad_aux_loss_buf, Result_Type grad_probs_buf) {
  auto const_tensor = as_tensor(const_buf_in);
  auto tokens_per_expert_tensor = as_tensor(tokens_per_expert_buf);
  auto grad_aux_loss_tensor = as_tensor(grad_aux_loss_buf);
  auto grad_probs_tensor = as_tensor(*grad_probs_buf);
  nvte_fused_moe_aux_loss_backward(const_tensor.data(), tokens_per_expert_tensor.data(),
                                   grad_aux_loss_tensor.data(), grad_probs_tensor.data(), stream);
  return ffi_with_cuda_error_check();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(FusedMoEAuxLossBackwardHandler, FusedMoEAuxLossBackwardFFI,
                              FFI::Bind()
                                  .Ctx<FFI_Stream_Type>()  // stream
                                  .Arg<Buffer_Type>()      // const_buf
                                  .Arg<Buffer_Type>()      // tokens_per_expert
                                  .Arg<Buffer_Type>()      // grad_aux_loss
                                  .Ret<Buffer_Type>(),     // grad_probs
                              FFI_CudaGraph_Traits);

}  // namespace jax
}  // namespace transformer_engine
