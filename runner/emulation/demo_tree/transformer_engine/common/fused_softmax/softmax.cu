// Softmax over the last axis; what a mask hides takes no part and comes out as zero.
#include "transformer_engine/softmax.h"

#include <cmath>

#include "common/util/logging.h"

namespace transformer_engine {
namespace {

template <typename Hidden>
void softmax_row(const float *in, float *out, size_t columns, float scale, Hidden hidden) {
  float top = -INFINITY;
  for (size_t c = 0; c < columns; ++c) {
    if (!hidden(c)) top = std::fmax(top, in[c] * scale);
  }
  float sum = 0;
  for (size_t c = 0; c < columns; ++c) {
    out[c] = hidden(c) ? 0 : std::exp(in[c] * scale - top);
    sum += out[c];
  }
  for (size_t c = 0; c < columns; ++c) out[c] = sum > 0 ? out[c] / sum : 0;
}

// A hidden value has probability zero, which makes its gradient zero as well.
void softmax_grad(NVTETensor grad, NVTETensor probs, NVTETensor output, float scale,
                  const char *kernel, cudaStream_t stream) {
  auto *dy = grad->as<float>();
  auto *y = probs->as<float>();
  auto *dx = output->as<float>();
  size_t rows = grad->rows();
  size_t columns = grad->columns();
  cudaLaunchHostKernel(kernel, stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      size_t start = r * columns;
      float dot = 0;
      for (size_t c = 0; c < columns; ++c) dot += dy[start + c] * y[start + c];
      for (size_t c = 0; c < columns; ++c) {
        dx[start + c] = scale * y[start + c] * (dy[start + c] - dot);
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

}  // namespace
}  // namespace transformer_engine

void nvte_scaled_softmax_forward(NVTETensor input, NVTETensor output, float scale,
                                 cudaStream_t stream) {
  auto *in = input->as<float>();
  auto *out = output->as<float>();
  size_t rows = input->rows();
  size_t columns = input->columns();
  cudaLaunchHostKernel("scaled_softmax_warp_forward", stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      transformer_engine::softmax_row(in + r * columns, out + r * columns, columns, scale,
                                      [](size_t) { return false; });
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_scaled_softmax_backward(NVTETensor grad, NVTETensor probs, NVTETensor output, float scale,
                                  cudaStream_t stream) {
  transformer_engine::softmax_grad(grad, probs, output, scale, "scaled_softmax_warp_backward",
                                   stream);
}

void nvte_scaled_masked_softmax_forward(NVTETensor input, NVTETensor mask, NVTETensor output,
                                        float scale, cudaStream_t stream) {
  NVTE_CHECK(mask->numel() == input->numel(), "The mask must have the input's shape.");
  auto *in = input->as<float>();
  auto *masked = mask->as<int32_t>();
  auto *out = output->as<float>();
  size_t rows = input->rows();
  size_t columns = input->columns();
  cudaLaunchHostKernel("scaled_masked_softmax_warp_forward", stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      const int32_t *row = masked + r * columns;
      transformer_engine::softmax_row(in + r * columns, out + r * columns, columns, scale,
                                      [row](size_t c) { return row[c] != 0; });
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_scaled_upper_triang_masked_softmax_forward(NVTETensor input, NVTETensor output,
                                                     float scale, cudaStream_t stream) {
  auto *in = input->as<float>();
  auto *out = output->as<float>();
  size_t rows = input->rows();
  size_t columns = input->columns();
  cudaLaunchHostKernel("scaled_upper_triang_masked_softmax_warp_forward", stream, [=] {
    for (size_t r = 0; r < rows; ++r) {
      size_t diagonal = r % columns;
      transformer_engine::softmax_row(in + r * columns, out + r * columns, columns, scale,
                                      [diagonal](size_t c) { return c > diagonal; });
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_scaled_upper_triang_masked_softmax_backward(NVTETensor grad, NVTETensor probs,
                                                      NVTETensor output, float scale,
                                                      cudaStream_t stream) {
  transformer_engine::softmax_grad(grad, probs, output, scale,
                                   "scaled_upper_triang_masked_softmax_warp_backward", stream);
}
