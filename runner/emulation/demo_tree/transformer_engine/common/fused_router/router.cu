// Sigmoid scores, the k best of each token, and the loss that keeps experts evenly used.
#include "transformer_engine/fused_router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/util/logging.h"

void nvte_fused_topk_with_score_function_forward(NVTETensor logits, int topk, float scaling_factor,
                                                 NVTETensor probs, NVTETensor routing_map,
                                                 cudaStream_t stream) {
  size_t tokens = logits->rows();
  size_t experts = logits->columns();
  NVTE_CHECK(topk > 0 && static_cast<size_t>(topk) <= experts, "topk is out of range: ", topk);
  auto *in = logits->as<float>();
  auto *out = probs->as<float>();
  auto *map = routing_map->as<uint8_t>();
  cudaLaunchHostKernel("fused_topk_forward_kernel", stream, [=] {
    std::vector<size_t> order(experts);
    for (size_t t = 0; t < tokens; ++t) {
      const float *row = in + t * experts;
      std::iota(order.begin(), order.end(), size_t{0});
      // The lower index wins between equal scores.
      std::stable_sort(order.begin(), order.end(),
                       [row](size_t a, size_t b) { return row[a] > row[b]; });
      for (size_t e = 0; e < experts; ++e) {
        out[t * experts + e] = 0;
        map[t * experts + e] = 0;
      }
      for (int i = 0; i < topk; ++i) {
        size_t e = order[i];
        out[t * experts + e] = scaling_factor / (1.0f + std::exp(-row[e]));
        map[t * experts + e] = 1;
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_fused_topk_with_score_function_backward(NVTETensor routing_map, NVTETensor probs,
                                                  NVTETensor grad, float scaling_factor,
                                                  NVTETensor grad_logits, cudaStream_t stream) {
  auto *map = routing_map->as<uint8_t>();
  auto *scored = probs->as<float>();
  auto *dy = grad->as<float>();
  auto *dx = grad_logits->as<float>();
  size_t n = grad->numel();
  cudaLaunchHostKernel("fused_topk_backward_kernel", stream, [=] {
    for (size_t i = 0; i < n; ++i) {
      dx[i] = map[i] != 0 ? dy[i] * scored[i] * (1 - scored[i] / scaling_factor) : 0;
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_fused_moe_aux_loss_forward(NVTETensor probs, NVTETensor tokens_per_expert, int topk,
                                     float coeff, NVTETensor aux_loss, NVTETensor aux_const,
                                     cudaStream_t stream) {
  auto *in = probs->as<float>();
  auto *counts = tokens_per_expert->as<int32_t>();
  auto *loss = aux_loss->as<float>();
  auto *factor = aux_const->as<float>();
  size_t tokens = probs->rows();
  size_t experts = probs->columns();
  cudaLaunchHostKernel("fused_aux_loss_forward_kernel", stream, [=] {
    factor[0] = coeff * experts / (static_cast<float>(topk) * tokens * tokens);
    float sum = 0;
    for (size_t e = 0; e < experts; ++e) {
      float column = 0;
      for (size_t t = 0; t < tokens; ++t) column += in[t * experts + e];
      sum += column * counts[e];
    }
    loss[0] = sum * factor[0];
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}

void nvte_fused_moe_aux_loss_backward(NVTETensor aux_const, NVTETensor tokens_per_expert,
                                      NVTETensor grad_aux_loss, NVTETensor grad_probs,
                                      cudaStream_t stream) {
  auto *factor = aux_const->as<float>();
  auto *counts = tokens_per_expert->as<int32_t>();
  auto *grad = grad_aux_loss->as<float>();
  auto *out = grad_probs->as<float>();
  size_t tokens = grad_probs->rows();
  size_t experts = grad_probs->columns();
  cudaLaunchHostKernel("fused_aux_loss_backward_kernel", stream, [=] {
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t e = 0; e < experts; ++e) {
        out[t * experts + e] = grad[0] * factor[0] * counts[e];
      }
    }
  });
  NVTE_CHECK_CUDA(cudaGetLastError());
}
