// Layer norm row by row; the gradients of gamma and beta are reduced by a kernel of their own.
#include <cmath>

#include "common/util/logging.h"
#include "transformer_engine/normalization.h"

void nvte_layernorm_fwd(NVTETensor x, NVTETensor gamma, NVTETensor beta, float epsilon,
                        NVTETensor z, NVTETensor mu, NVTETensor rsigma, cudaStream_t stream) {
  NVTE_CHECK(gamma->numel() == x->columns(), "Gamma must have one value per column.");
  auto *in = x->as<float>();
  auto *scale = gamma->as<float>();
  auto *shift = beta->as<float>();
  auto *out = z->as<float>();
  auto *mean = mu->as<float>();
  auto *rstd = rsigma->as<float>();
  size_t rows = x->rows();
  size_t columns = x->columns();
  cudaLaunchHostKernel("ln_fwd_kernel", stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      const float *row = in + r * columns;
      float sum = 0;
      for (size_t c = 0; c < columns; ++c) sum += row[c];
      mean[r] = sum / columns;
      float squares = 0;
      for (size_t c = 0; c < columns; ++c) squares += (row[c] - mean[r]) * (row[c] - mean[r]);
      rstd[r] = 1.0f / std::sqrt(squares / columns + epsilon);
      for (size_t c = 0; c < columns; ++c) {
        out[r * columns + c] = (row[c] - mean[r]) * rstd[r] * scale[c] + shift[c];
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_layernorm_bwd(NVTETensor dz, NVTETensor x, NVTETensor mu, NVTETensor rsigma,
                        NVTETensor gamma, NVTETensor dx, NVTETensor dgamma, NVTETensor dbeta,
                        cudaStream_t stream) {
  auto *grad = dz->as<float>();
  auto *in = x->as<float>();
  auto *mean = mu->as<float>();
  auto *rstd = rsigma->as<float>();
  auto *scale = gamma->as<float>();
  auto *out = dx->as<float>();
  size_t rows = x->rows();
  size_t columns = x->columns();
  cudaLaunchHostKernel("ln_bwd_kernel", stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      float sum = 0;
      float dot = 0;
      for (size_t c = 0; c < columns; ++c) {
        size_t i = r * columns + c;
        float y = (in[i] - mean[r]) * rstd[r];
        sum += grad[i] * scale[c];
        dot += grad[i] * scale[c] * y;
      }
      for (size_t c = 0; c < columns; ++c) {
        size_t i = r * columns + c;
        float y = (in[i] - mean[r]) * rstd[r];
        out[i] = rstd[r] * (grad[i] * scale[c] - (sum + y * dot) / columns);
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());

  auto *dscale = dgamma->as<float>();
  auto *dshift = dbeta->as<float>();
  cudaLaunchHostKernel("ln_bwd_finalize_kernel", stream, [=] {
    for (size_t c = 0; c < columns; ++c) {
      float scale_sum = 0;
      float shift_sum = 0;
      for (size_t r = 0; r < rows; ++r) {
        size_t i = r * columns + c;
        scale_sum += grad[i] * (in[i] - mean[r]) * rstd[r];
        shift_sum += grad[i];
      }
      dscale[c] = scale_sum;
      dshift[c] = shift_sum;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}
