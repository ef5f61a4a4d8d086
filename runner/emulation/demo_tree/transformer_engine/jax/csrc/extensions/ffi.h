// Short names for XLA's FFI, and what every handler needs from it.
#ifndef TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_FFI_H_
#define TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_FFI_H_

#include <transformer_engine/transformer_engine.h>
#include <xla/ffi/api/ffi.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/util/logging.h"

namespace transformer_engine {
namespace jax {

using Buffer_Type = xla::ffi::AnyBuffer;
using Result_Type = xla::ffi::Result<xla::ffi::AnyBuffer>;
using Error_Type = xla::ffi::Error;
using FFI = xla::ffi::Ffi;
using FFI_Stream_Type = xla::ffi::PlatformStream<cudaStream_t>;

constexpr auto FFI_Prepare = xla::ffi::ExecutionStage::kPrepare;
constexpr auto FFI_CudaGraph_Traits = {xla::ffi::Traits::kCmdBufferCompatible};

DType convert_ffi_datatype_to_te_dtype(const xla::ffi::DataType &type);

Error_Type ffi_with_cuda_error_check();

// The buffer as a launcher takes it.
TensorWrapper as_tensor(const Buffer_Type &buffer);

}  // namespace jax
}  // namespace transformer_engine

#endif  // TRANSFORMER_ENGINE_JAX_CSRC_EXTENSIONS_FFI_H_
