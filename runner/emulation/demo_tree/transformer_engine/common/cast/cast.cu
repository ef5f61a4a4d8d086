// 8-bit quantization by the largest magnitude, and the sum of a gradient over its rows.
#include "transformer_engine/cast.h"

#include <algorithm>
#include <cmath>

#include "common/util/logging.h"

namespace transformer_engine {
namespace {

constexpr float kLargest = 127.0f;
constexpr int kZero = 128;

float scale_inverse(const float *values, size_t count) {
  float amax = 0;
  for (size_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(values[i]));
  return amax > 0 ? amax / kLargest : 1.0f;
}

uint8_t to_byte(float value, float scale_inv) {
  return static_cast<uint8_t>(static_cast<int>(std::nearbyint(value / scale_inv)) + kZero);
}

}  // namespace
}  // namespace transformer_engine

using transformer_engine::scale_inverse;
using transformer_engine::to_byte;

void nvte_quantize(NVTETensor input, NVTETensor output, NVTETensor scale_inv, cudaStream_t stream) {
  NVTE_CHECK(input->numel() == output->numel(), "Input and output differ in size.");
  auto *in = input->as<float>();
  auto *out = output->as<uint8_t>();
  auto *scale = scale_inv->as<float>();
  size_t n = input->numel();
  cudaLaunchHostKernel("quantize_kernel", stream, [=] {
    scale[0] = scale_inverse(in, n);
    for (size_t i = 0; i < n; ++i) out[i] = to_byte(in[i], scale[0]);
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_dequantize(NVTETensor input, NVTETensor scale_inv, NVTETensor output,
                     cudaStream_t stream) {
  auto *in = input->as<uint8_t>();
  auto *scale = scale_inv->as<float>();
  auto *out = output->as<float>();
  size_t n = input->numel();
  cudaLaunchHostKernel("dequantize_kernel", stream, [=] {
    for (size_t i = 0; i < n; ++i) {
      out[i] = (static_cast<int>(in[i]) - transformer_engine::kZero) * scale[0];
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_group_quantize(NVTETensor input, NVTETensor group_sizes, NVTETensor output,
                         NVTETensor scale_invs, cudaStream_t stream) {
  auto *in = input->as<float>();
  auto *sizes = group_sizes->as<int32_t>();
  auto *out = output->as<uint8_t>();
  auto *scales = scale_invs->as<float>();
  size_t groups = group_sizes->numel();
  size_t columns = input->columns();
  cudaLaunchHostKernel("group_quantize_kernel", stream, [=] {
    size_t start = 0;
    for (size_t g = 0; g < groups; ++g) {
      size_t count = static_cast<size_t>(sizes[g]) * columns;
      scales[g] = scale_inverse(in + start, count);
      for (size_t i = 0; i < count; ++i) out[start + i] = to_byte(in[start + i], scales[g]);
      start += count;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_reduce_dbias(NVTETensor grad, NVTETensor dbias, cudaStream_t stream) {
  auto *in = grad->as<float>();
  auto *out = dbias->as<float>();
  size_t rows = grad->rows();
  size_t columns = grad->columns();
  cudaLaunchHostKernel("reduce_dbias_kernel", stream, [=] {
    for (size_t c = 0; c < columns; ++c) {
      float sum = 0;
      for (size_t r = 0; r < rows; ++r) sum += in[r * columns + c];
      out[c] = sum;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}
