// Matrix product with operands rounded to the 8-bit grid where low precision is asked for.
#include "transformer_engine/gemm.h"

#include <cmath>

#include "common/util/logging.h"

void nvte_gemm(NVTETensor lhs, bool lhs_transposed, NVTETensor rhs, bool rhs_transposed,
               NVTETensor output, bool low_precision, cudaStream_t stream) {
  size_t m = lhs_transposed ? lhs->columns() : lhs->rows();
  size_t k = lhs_transposed ? lhs->rows() : lhs->columns();
  size_t n = rhs_transposed ? rhs->rows() : rhs->columns();
  NVTE_CHECK(k == (rhs_transposed ? rhs->columns() : rhs->rows()),
             "Contracting dimensions differ.");
  NVTE_CHECK(output->numel() == m * n, "Output has the wrong size.");
  auto *a = lhs->as<float>();
  auto *b = rhs->as<float>();
  auto *c = output->as<float>();
  auto operand = [low_precision](float value) {
    return low_precision ? std::nearbyint(value * 64.0f) / 64.0f : value;
  };
  cudaLaunchHostKernel("gemm_kernel", stream, [=] {
    for (size_t i = 0; i < m; ++i) {
      for (size_t j = 0; j < n; ++j) {
        float sum = 0;
        for (size_t l = 0; l < k; ++l) {
          float left = operand(lhs_transposed ? a[l * m + i] : a[i * k + l]);
          float right = operand(rhs_transposed ? b[j * k + l] : b[l * n + j]);
          sum += left * right;
        }
        c[i * n + j] = sum;
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}
