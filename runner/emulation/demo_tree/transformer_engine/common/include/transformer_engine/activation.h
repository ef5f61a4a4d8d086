// Activations, forward and backward.
#ifndef TRANSFORMER_ENGINE_ACTIVATION_H_
#define TRANSFORMER_ENGINE_ACTIVATION_H_

#include "transformer_engine.h"

enum class NVTE_Activation_Type : int64_t { GELU = 0, RELU = 1 };

// `low_precision` rounds the result to the grid that an 8-bit GEMM would read.
void nvte_act(NVTETensor input, NVTETensor output, NVTE_Activation_Type type, bool low_precision,
              cudaStream_t stream);
void nvte_dact(NVTETensor grad, NVTETensor act_input, NVTETensor output, NVTE_Activation_Type type,
               bool low_precision, cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_ACTIVATION_H_
