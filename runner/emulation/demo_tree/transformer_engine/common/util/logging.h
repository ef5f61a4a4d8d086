// Checks that throw, with the place they failed at in front of the text.
#ifndef TRANSFORMER_ENGINE_COMMON_UTIL_LOGGING_H_
#define TRANSFORMER_ENGINE_COMMON_UTIL_LOGGING_H_

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "common/util/string.h"

#define NVTE_ERROR(...)                                                                          \
  do {                                                                                           \
    throw ::std::runtime_error(::transformer_engine::concat_strings(                             \
        __FILE__, ":", __LINE__, " in function ", __func__, ": ",                                \
        ::transformer_engine::concat_strings(__VA_ARGS__)));                                     \
  } while (false)

#define NVTE_CHECK(condition, ...)                                                               \
  do {                                                                                           \
    if (!(condition)) {                                                                          \
      NVTE_ERROR("Assertion failed: " #condition ". ",                                           \
                 ::transformer_engine::concat_strings(__VA_ARGS__));                             \
    }                                                                                            \
  } while (false)

#define NVTE_CHECK_CUDA(call)                                                                    \
  do {                                                                                           \
    const cudaError_t nvte_cuda_status = (call);                                                 \
    if (nvte_cuda_status != cudaSuccess) {                                                       \
      NVTE_ERROR("CUDA Error: ", cudaGetErrorString(nvte_cuda_status));                          \
    }                                                                                            \
  } while (false)

#endif  // TRANSFORMER_ENGINE_COMMON_UTIL_LOGGING_H_
