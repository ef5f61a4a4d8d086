// Element-wise kernels of the activations.
#include "transformer_engine/activation.h"

#include <cmath>

#include "common/util/logging.h"

namespace transformer_engine {
namespace {

constexpr float kGrid = 64.0f;

float round_to_grid(float value) { return std::nearbyint(value * kGrid) / kGrid; }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// GELU in its sigmoid form.
float act(NVTE_Activation_Type type, float x) {
  if (type == NVTE_Activation_Type::RELU) return x > 0 ? x : 0;
  return x * sigmoid(1.702f * x);
}

float dact(NVTE_Activation_Type type, float x) {
  if (type == NVTE_Activation_Type::RELU) return x > 0 ? 1 : 0;
  float s = sigmoid(1.702f * x);
  return s + 1.702f * x * s * (1 - s);
}

void VectorizedUnaryKernelLauncher(NVTETensor input, NVTETensor output, NVTE_Activation_Type type,
                                   bool low_precision, cudaStream_t stream) {
  auto *in = input->as<float>();
  auto *out = output->as<float>();
  size_t n = input->numel();
  cudaLaunchHostKernel("unary_kernel", stream, [=] {
    for (size_t i = 0; i < n; ++i) {
      float y = act(type, in[i]);
      out[i] = low_precision ? round_to_grid(y) : y;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void VectorizedUnaryGradKernelLauncher(NVTETensor grad, NVTETensor act_input, NVTETensor output,
                                       NVTE_Activation_Type type, bool low_precision,
                                       cudaStream_t stream) {
  auto *dy = grad->as<float>();
  auto *in = act_input->as<float>();
  auto *out = output->as<float>();
  size_t n = grad->numel();
  cudaLaunchHostKernel("unary_grad_kernel", stream, [=] {
    for (size_t i = 0; i < n; ++i) {
      float dx = dy[i] * dact(type, in[i]);
      out[i] = low_precision ? round_to_grid(dx) : dx;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

}  // namespace
}  // namespace transformer_engine

void nvte_act(NVTETensor input, NVTETensor output, NVTE_Activation_Type type, bool low_precision,
              cudaStream_t stream) {
  NVTE_CHECK(input->numel() == output->numel(), "Input and output differ in size.");
  transformer_engine::VectorizedUnaryKernelLauncher(input, output, type, low_precision, stream);
}

void nvte_dact(NVTETensor grad, NVTETensor act_input, NVTETensor output, NVTE_Activation_Type type,
               bool low_precision, cudaStream_t stream) {
  NVTE_CHECK(grad->numel() == act_input->numel(), "Gradient and input differ in size.");
  transformer_engine::VectorizedUnaryGradKernelLauncher(grad, act_input, output, type,
                                                        low_precision, stream);
}
