// Layer norm, forward and backward.
#ifndef TRANSFORMER_ENGINE_NORMALIZATION_H_
#define TRANSFORMER_ENGINE_NORMALIZATION_H_

#include "transformer_engine.h"

enum class NVTE_Norm_Type : int64_t { LayerNorm = 0 };

void nvte_layernorm_fwd(NVTETensor x, NVTETensor gamma, NVTETensor beta, float epsilon,
                        NVTETensor z, NVTETensor mu, NVTETensor rsigma, cudaStream_t stream);
void nvte_layernorm_bwd(NVTETensor dz, NVTETensor x, NVTETensor mu, NVTETensor rsigma,
                        NVTETensor gamma, NVTETensor dx, NVTETensor dgamma, NVTETensor dbeta,
                        cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_NORMALIZATION_H_
