// XLA's C interface of an FFI call, cut down to what a handler of the demo subject is given.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

enum XLA_FFI_ExecutionStage {
  XLA_FFI_ExecutionStage_INSTANTIATE = 0,
  XLA_FFI_ExecutionStage_PREPARE = 1,
  XLA_FFI_ExecutionStage_INITIALIZE = 2,
  XLA_FFI_ExecutionStage_EXECUTE = 3,
};

enum XLA_FFI_Error_Code {
  XLA_FFI_Error_Code_OK = 0,
  XLA_FFI_Error_Code_UNKNOWN = 2,
  XLA_FFI_Error_Code_INVALID_ARGUMENT = 3,
  XLA_FFI_Error_Code_UNIMPLEMENTED = 12,
  XLA_FFI_Error_Code_INTERNAL = 13,
};

enum XLA_FFI_DataType {
  XLA_FFI_DataType_S32 = 4,
  XLA_FFI_DataType_S64 = 5,
  XLA_FFI_DataType_U8 = 6,
  XLA_FFI_DataType_F32 = 11,
};

struct XLA_FFI_Buffer {
  XLA_FFI_DataType type;
  void *data;
  std::vector<std::int64_t> dims;
};

// A scalar of one of the three types that the programs pass.
struct XLA_FFI_Scalar {
  enum Type { kBool, kInt64, kDouble } type;
  std::int64_t integer;
  double real;

  XLA_FFI_Scalar(bool value) : type(kBool), integer(value), real(0) {}
  XLA_FFI_Scalar(std::int64_t value) : type(kInt64), integer(value), real(0) {}
  XLA_FFI_Scalar(double value) : type(kDouble), integer(0), real(value) {}
};

using XLA_FFI_Attrs = std::vector<std::pair<std::string, XLA_FFI_Scalar>>;

struct XLA_FFI_CallFrame {
  XLA_FFI_ExecutionStage stage;
  void *stream;
  std::vector<XLA_FFI_Buffer> args;
  std::vector<XLA_FFI_Buffer> rets;
  XLA_FFI_Attrs attrs;
};

// Owned by the caller of a handler; null means success.
struct XLA_FFI_Error {
  XLA_FFI_Error_Code code;
  std::string message;
};
