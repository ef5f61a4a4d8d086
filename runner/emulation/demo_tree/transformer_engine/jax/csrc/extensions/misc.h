// Attributes that Python passes as numbers.
#ifndef TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_MISC_H_
#define TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_MISC_H_

#include <cstdint>

namespace transformer_engine {
namespace jax {

enum class JAXX_Scaling_Mode : int64_t {
  NO_SCALING = 0,
  DELAYED_TENSOR_SCALING = 1,
  MXFP8_1D_SCALING = 2,
  CURRENT_TENSOR_SCALING = 3,
};

inline bool is_low_precision(JAXX_Scaling_Mode mode) {
  return mode != JAXX_Scaling_Mode::NO_SCALING;
}

}  // namespace jax
}  // namespace transformer_engine

#endif  // TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_MISC_H_
