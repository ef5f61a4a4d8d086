// Scaled softmax: plain, masked, and masked above the diagonal.
#ifndef TRANSFORMER_ENGINE_SOFTMAX_H_
#define TRANSFORMER_ENGINE_SOFTMAX_H_

#include "transformer_engine.h"

void nvte_scaled_softmax_forward(NVTETensor input, NVTETensor output, float scale,
                                 cudaStream_t stream);
void nvte_scaled_softmax_backward(NVTETensor grad, NVTETensor probs, NVTETensor output, float scale,
                                  cudaStream_t stream);
void nvte_scaled_masked_softmax_forward(NVTETensor input, NVTETensor mask, NVTETensor output,
                                        float scale, cudaStream_t stream);
void nvte_scaled_upper_triang_masked_softmax_forward(NVTETensor input, NVTETensor output,
                                                     float scale, cudaStream_t stream);
void nvte_scaled_upper_triang_masked_softmax_backward(NVTETensor grad, NVTETensor probs,
                                                      NVTETensor output, float scale,
                                                      cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_SOFTMAX_H_
