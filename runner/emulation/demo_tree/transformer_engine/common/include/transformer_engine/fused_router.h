// Routing of tokens to experts: top-k of the scores, and the loss that balances the experts.
#ifndef TRANSFORMER_ENGINE_FUSED_ROUTER_H_
#define TRANSFORMER_ENGINE_FUSED_ROUTER_H_

#include "transformer_engine.h"

void nvte_fused_topk_with_score_function_forward(NVTETensor logits, int topk, float scaling_factor,
                                                 NVTETensor probs, NVTETensor routing_map,
                                                 cudaStream_t stream);
void nvte_fused_topk_with_score_function_backward(NVTETensor routing_map, NVTETensor probs,
                                                  NVTETensor grad, float scaling_factor,
                                                  NVTETensor grad_logits, cudaStream_t stream);
void nvte_fused_moe_aux_loss_forward(NVTETensor probs, NVTETensor tokens_per_expert, int topk,
                                     float coeff, NVTETensor aux_loss, NVTETensor aux_const,
                                     cudaStream_t stream);
void nvte_fused_moe_aux_loss_backward(NVTETensor aux_const, NVTETensor tokens_per_expert,
                                      NVTETensor grad_aux_loss, NVTETensor grad_probs,
                                      cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_FUSED_ROUTER_H_
