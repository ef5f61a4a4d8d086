// Matrix products.
#ifndef TRANSFORMER_ENGINE_GEMM_H_
#define TRANSFORMER_ENGINE_GEMM_H_

#include "transformer_engine.h"

void nvte_gemm(NVTETensor lhs, bool lhs_transposed, NVTETensor rhs, bool rhs_transposed,
               NVTETensor output, bool low_precision, cudaStream_t stream);

#endif  // TRANSFORMER_ENGINE_GEMM_H_
