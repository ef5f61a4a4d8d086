// Conversions between XLA's FFI and the launchers.
#include "extensions/ffi.h"

namespace transformer_engine {
namespace jax {

DType convert_ffi_datatype_to_te_dtype(const xla::ffi::DataType &type) {
  switch (type) {
    case xla::ffi::DataType::U8:
      return DType::kByte;
    case xla::ffi::DataType::S32:
      return DType::kInt32;
    case xla::ffi::DataType::S64:
      return DType::kInt64;
    case xla::ffi::DataType::F32:
      return DType::kFloat32;
  }
  NVTE_ERROR("No DType for XLA_FFI_DataType ", static_cast<int>(type));
}

Error_Type ffi_with_cuda_error_check() {
  cudaError_t last_error = cudaGetLastError();
  if (last_error != cudaSuccess) {
    return Error_Type(XLA_FFI_Error_Code_INTERNAL,
                      std::string("CUDA error: ") + cudaGetErrorString(last_error));
  }
  return Error_Type::Success();
}

TensorWrapper as_tensor(const Buffer_Type &buffer) {
  std::vector<size_t> shape;
  for (int64_t dim : buffer.dimensions()) shape.push_back(static_cast<size_t>(dim));
  return TensorWrapper(buffer.untyped_data(), shape,
                       convert_ffi_datatype_to_te_dtype(buffer.element_type()));
}

}  // namespace jax
}  // namespace transformer_engine
