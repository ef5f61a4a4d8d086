// The demo's two programs: buffers with fixed contents and the FFI calls on them.
#include <cstring>

#include "emulation.h"

namespace emulation {
namespace {

constexpr XLA_FFI_DataType kF32 = XLA_FFI_DataType_F32;
constexpr XLA_FFI_DataType kU8 = XLA_FFI_DataType_U8;

std::size_t Bytes(XLA_FFI_DataType type, const std::vector<std::int64_t> &dims) {
  std::size_t bytes = type == kU8 ? 1 : type == XLA_FFI_DataType_S64 ? 8 : 4;
  for (std::int64_t dim : dims) bytes *= static_cast<std::size_t>(dim);
  return bytes;
}

// JAXX_Scaling_Mode of the recipe, as the extension numbers it.
std::int64_t ScalingMode(const std::string &recipe) {
  if (recipe == "bf16") return 0;
  if (recipe == "fp8-current-scaling") return 3;
  throw std::runtime_error("recipe " + recipe + " has no scaling mode on this device");
}

Program NormActGemm(std::int64_t scaling_mode) {
  const std::vector<std::int64_t> wide{64, 32};
  const std::vector<std::int64_t> row{32};
  const std::vector<std::int64_t> column{64};
  Program p;
  p.Input("x", wide, 1);
  p.Input("gamma", row, 2);
  p.Input("beta", row, 3);
  p.Input("weight", {32, 32}, 4);
  p.Input("dz", wide, 5);
  p.Temporary("normed", kF32, wide);
  p.Temporary("mu", kF32, column);
  p.Temporary("rsigma", kF32, column);
  p.Temporary("activated", kF32, wide);
  p.Temporary("dactivated", kF32, wide);
  p.Temporary("dnormed", kF32, wide);
  p.Output("z", kF32, wide);
  p.Output("dweight", kF32, {32, 32});
  p.Output("dbias", kF32, row);
  p.Output("dx", kF32, wide);
  p.Output("dgamma", kF32, row);
  p.Output("dbeta", kF32, row);

  const std::int64_t gelu = 0;
  p.calls = {
      {"te_norm_forward_ffi",
       {"x", "gamma", "beta"},
       {"normed", "mu", "rsigma"},
       {{"norm_type", std::int64_t{0}}, {"epsilon", 1e-6}}},
      {"te_act_lu_ffi",
       {"normed"},
       {"activated"},
       {{"act_enum", gelu}, {"scaling_mode", scaling_mode}}},
      {"te_gemm_ffi",
       {"activated", "weight"},
       {"z"},
       {{"lhs_transposed", false}, {"rhs_transposed", false}, {"scaling_mode", scaling_mode}}},
      {"te_gemm_ffi",
       {"activated", "dz"},
       {"dweight"},
       {{"lhs_transposed", true}, {"rhs_transposed", false}, {"scaling_mode", scaling_mode}}},
      {"te_gemm_ffi",
       {"dz", "weight"},
       {"dactivated"},
       {{"lhs_transposed", false}, {"rhs_transposed", true}, {"scaling_mode", scaling_mode}}},
      {"te_dact_dbias_quantize_ffi",
       {"dactivated", "normed"},
       {"dnormed", "dbias"},
       {{"act_enum", gelu}, {"scaling_mode", scaling_mode}, {"is_dbias", true}}},
      {"te_norm_backward_ffi",
       {"dnormed", "x", "mu", "rsigma", "gamma"},
       {"dx", "dgamma", "dbeta"},
       {{"norm_type", std::int64_t{0}}}},
  };
  return p;
}

Program SoftmaxQuantizeRouter(std::int64_t scaling_mode) {
  const std::vector<std::int64_t> scores{2, 2, 16, 16};
  const std::vector<std::int64_t> tokens{64, 32};
  const std::vector<std::int64_t> experts{64, 16};
  Program p;
  p.Input("x", tokens, 1);
  p.Input("scores", scores, 2);
  p.Input("dprobs", scores, 3);
  p.Input("logits", experts, 4);
  p.Input("drouted", experts, 5);
  p.Input("dloss", {1}, 6);
  p.Integers("mask", scores, {0, 0, 0, 1, 0});
  p.Integers("group_sizes", {4}, {8, 24, 16, 16});
  p.Integers("tokens_per_expert", {16}, {4, 2, 9, 1, 3, 5, 7});
  p.Output("quantized", kU8, tokens);
  p.Output("scale_inv", kF32, {1});
  p.Output("dbias", kF32, {32});
  p.Output("dequantized", kF32, tokens);
  p.Output("grouped", kU8, tokens);
  p.Output("grouped_scale_inv", kF32, {4});
  p.Output("plain", kF32, scores);
  p.Output("masked", kF32, scores);
  p.Output("causal", kF32, scores);
  p.Output("dplain", kF32, scores);
  p.Output("dmasked", kF32, scores);
  p.Output("dcausal", kF32, scores);
  p.Output("routed", kF32, experts);
  p.Output("routing_map", kU8, experts);
  p.Output("dlogits", kF32, experts);
  p.Output("aux_loss", kF32, {1});
  p.Temporary("aux_const", kF32, {1});
  p.Output("daux", kF32, experts);

  const XLA_FFI_Attrs softmax{{"scale_factor", 0.5}};
  const XLA_FFI_Attrs topk{{"topk", std::int64_t{4}},
                                                      {"scaling_factor", 1.5}};
  const XLA_FFI_Attrs aux{{"topk", std::int64_t{4}}, {"coeff", 0.01}};
  p.calls = {
      {"te_dbias_quantize_ffi",
       {"x"},
       {"quantized", "scale_inv", "dbias"},
       {{"scaling_mode", scaling_mode}, {"is_dbias", true}}},
      {"te_dequantize_ffi", {"quantized", "scale_inv"}, {"dequantized"}, {}},
      {"te_grouped_quantize_v2_ffi",
       {"x", "group_sizes"},
       {"grouped", "grouped_scale_inv"},
       {{"flatten_axis", std::int64_t{1}}}},
      {"te_scaled_softmax_forward_ffi", {"scores"}, {"plain"}, softmax},
      {"te_scaled_masked_softmax_forward_ffi", {"scores", "mask"}, {"masked"}, softmax},
      {"te_scaled_upper_triang_masked_softmax_forward_ffi", {"scores"}, {"causal"}, softmax},
      {"te_scaled_softmax_backward_ffi", {"dprobs", "plain"}, {"dplain"}, softmax},
      {"te_scaled_masked_softmax_backward_ffi", {"dprobs", "masked"}, {"dmasked"}, softmax},
      {"te_scaled_upper_triang_masked_softmax_backward_ffi",
       {"dprobs", "causal"},
       {"dcausal"},
       softmax},
      {"te_fused_topk_with_score_function_forward_ffi",
       {"logits"},
       {"routed", "routing_map"},
       topk},
      {"te_fused_topk_with_score_function_backward_ffi",
       {"routing_map", "routed", "drouted"},
       {"dlogits"},
       topk},
      {"te_fused_moe_aux_loss_forward_ffi",
       {"routed", "tokens_per_expert"},
       {"aux_loss", "aux_const"},
       aux},
      {"te_fused_moe_aux_loss_backward_ffi",
       {"aux_const", "tokens_per_expert", "dloss"},
       {"daux"},
       {}},
  };
  return p;
}

}  // namespace

void Program::Allocate(const std::string &buffer, XLA_FFI_DataType type,
                       std::vector<std::int64_t> dims) {
  auto &bytes = memory[buffer];
  bytes.assign(Bytes(type, dims), 0);
  buffers[buffer] = XLA_FFI_Buffer{type, bytes.data(), std::move(dims)};
}

void Program::Input(const std::string &buffer, std::vector<std::int64_t> dims, int seed) {
  Allocate(buffer, kF32, std::move(dims));
  auto &bytes = memory[buffer];
  std::uint32_t state = 2654435769u * static_cast<std::uint32_t>(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    state = state * 1664525u + 1013904223u;
    float value = static_cast<float>(state >> 20) / 2048.0f - 1.0f;  // 12 bits in [-1, 1)
    std::memcpy(&bytes[at], &value, sizeof(value));
  }
  inputs[buffer] = bytes;
}

void Program::Integers(const std::string &buffer, std::vector<std::int64_t> dims,
                       const std::vector<std::int32_t> &values) {
  Allocate(buffer, XLA_FFI_DataType_S32, std::move(dims));
  auto &bytes = memory[buffer];
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::int32_t)) {
    std::memcpy(&bytes[at], &values[at / sizeof(std::int32_t) % values.size()],
                sizeof(std::int32_t));
  }
  inputs[buffer] = bytes;
}

void Program::Temporary(const std::string &buffer, XLA_FFI_DataType type,
                        std::vector<std::int64_t> dims) {
  Allocate(buffer, type, std::move(dims));
}

void Program::Output(const std::string &buffer, XLA_FFI_DataType type,
                     std::vector<std::int64_t> dims) {
  Allocate(buffer, type, std::move(dims));
  outputs.push_back(buffer);
}

Program MakeProgram(const std::string &name, const std::string &recipe) {
  if (name == "norm-act-gemm") return NormActGemm(ScalingMode(recipe));
  if (name == "softmax-quantize-router") return SoftmaxQuantizeRouter(ScalingMode(recipe));
  throw std::runtime_error("no program is called " + name);
}

}  // namespace emulation
