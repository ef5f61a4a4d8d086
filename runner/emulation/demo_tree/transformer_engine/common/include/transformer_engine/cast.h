// Quantization to 8 bits with one scale for a tensor or for each group of rows, and back.
#ifndef TRANSFORMER_ENGINE_CAST_H_
#define TRANSFORMER_ENGINE_CAST_H_

#include "transformer_engine.h"

void nvte_quantize(NVTETensor input, NVTETensor output, NVTETensor scale_inv, cudaStream_t stream);
void nvte_dequantize(NVTETensor input, NVTETensor scale_inv, NVTETensor output,
                     cudaStream_t stream);
void nvte_group_quantize(NVTETensor input, NVTETensor group_sizes, NVTETensor output,
                         NVTETensor scale_invs, cudaStream_t stream);
void nvte_reduce_dbias(NVTETensor grad, NVTETensor dbias, cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_CAST_H_
