// Tensors as the launchers see them: a pointer, a shape and a type.
#ifndef TRANSFORMER_ENGINE_TRANSFORMER_ENGINE_H_
#define TRANSFORMER_ENGINE_TRANSFORMER_ENGINE_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace transformer_engine {

enum class DType { kByte, kInt32, kInt64, kFloat32 };

struct BasicTensor {
  void *dptr;
  std::vector<size_t> shape;
  DType dtype;

  size_t numel() const {
    size_t count = 1;
    for (size_t dim : shape) count *= dim;
    return count;
  }
  size_t rows() const { return shape.empty() ? 1 : numel() / shape.back(); }
  size_t columns() const { return shape.empty() ? 1 : shape.back(); }
  template <typename T>
  T *as() const {
    return static_cast<T *>(dptr);
  }
};

}  // namespace transformer_engine

using NVTETensor = const transformer_engine::BasicTensor *;

namespace transformer_engine {

class TensorWrapper {
 public:
  TensorWrapper(void *dptr, std::vector<size_t> shape, DType dtype)
      : tensor_{dptr, std::move(shape), dtype} {}
  NVTETensor data() const { return &tensor_; }

 private:
  BasicTensor tensor_;
};

}  // namespace transformer_engine

#endif  // TRANSFORMER_ENGINE_TRANSFORMER_ENGINE_H_
