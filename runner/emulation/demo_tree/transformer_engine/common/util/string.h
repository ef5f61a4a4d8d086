// Text from parts of any printable type.
#ifndef TRANSFORMER_ENGINE_COMMON_UTIL_STRING_H_
#define TRANSFORMER_ENGINE_COMMON_UTIL_STRING_H_

#include <string>
#include <type_traits>

namespace transformer_engine {

template <typename T>
std::string to_string_like(const T &value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else {
    return std::string(value);
  }
}

template <typename... Parts>
std::string concat_strings(const Parts &...parts) {
  std::string text;
  (text.append(to_string_like(parts)), ...);
  return text;
}

}  // namespace transformer_engine

#endif  // TRANSFORMER_ENGINE_COMMON_UTIL_STRING_H_
