// XLA's typed FFI, cut down: a binding lists what a handler takes and reads it off a call frame.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace xla::ffi {

enum class ExecutionStage {
  kInstantiate = XLA_FFI_ExecutionStage_INSTANTIATE,
  kPrepare = XLA_FFI_ExecutionStage_PREPARE,
  kInitialize = XLA_FFI_ExecutionStage_INITIALIZE,
  kExecute = XLA_FFI_ExecutionStage_EXECUTE,
};

enum class Traits { kCmdBufferCompatible = 1 };

enum class DataType {
  S32 = XLA_FFI_DataType_S32,
  S64 = XLA_FFI_DataType_S64,
  U8 = XLA_FFI_DataType_U8,
  F32 = XLA_FFI_DataType_F32,
};

class Error {
 public:
  Error(XLA_FFI_Error_Code code, std::string message) : code_(code), message_(std::move(message)) {}
  static Error Success() { return Error(XLA_FFI_Error_Code_OK, ""); }
  static Error Internal(std::string text) { return {XLA_FFI_Error_Code_INTERNAL, std::move(text)}; }
  bool success() const { return code_ == XLA_FFI_Error_Code_OK; }
  bool failure() const { return !success(); }
  XLA_FFI_Error_Code code() const { return code_; }
  const std::string &message() const { return message_; }

 private:
  XLA_FFI_Error_Code code_;
  std::string message_;
};

template <typename T>
class Span {
 public:
  explicit Span(const std::vector<std::remove_const_t<T>> &items) : items_(&items) {}
  std::size_t size() const { return items_->size(); }
  const T &operator[](std::size_t index) const { return (*items_)[index]; }
  const T &back() const { return items_->back(); }
  auto begin() const { return items_->begin(); }
  auto end() const { return items_->end(); }

 private:
  const std::vector<std::remove_const_t<T>> *items_;
};

class AnyBuffer {
 public:
  explicit AnyBuffer(const XLA_FFI_Buffer *buffer) : buffer_(buffer) {}
  DataType element_type() const { return static_cast<DataType>(buffer_->type); }
  Span<const std::int64_t> dimensions() const { return Span<const std::int64_t>(buffer_->dims); }
  void *untyped_data() const { return buffer_->data; }
  std::size_t element_count() const {
    std::size_t count = 1;
    for (std::int64_t dim : buffer_->dims) count *= static_cast<std::size_t>(dim);
    return count;
  }

 private:
  const XLA_FFI_Buffer *buffer_;
};

template <typename T>
class Result {
 public:
  explicit Result(T value) : value_(std::move(value)) {}
  T *operator->() { return &value_; }
  T &operator*() { return value_; }

 private:
  T value_;
};

template <typename T>
struct PlatformStream {};

namespace internal {

// What a binding lists, in order. A slot's position among its own kind is known when compiling.
template <typename T>
struct CtxSlot;
template <typename T>
struct CtxSlot<PlatformStream<T>> {
  using type = T;
};
struct ArgSlot {
  using type = AnyBuffer;
};
struct RetSlot {
  using type = Result<AnyBuffer>;
};
template <typename T>
struct AttrSlot {
  using type = T;
};

const XLA_FFI_Buffer *Operand(const std::vector<XLA_FFI_Buffer> &buffers, std::size_t index,
                              const char *kind);
const XLA_FFI_Scalar &Attribute(const XLA_FFI_Attrs &attrs, const std::string &name,
                                XLA_FFI_Scalar::Type type);

template <typename T>
struct Decoder;
template <typename T>
struct Decoder<CtxSlot<PlatformStream<T>>> {
  static constexpr int kind = 0;
  static T Decode(const XLA_FFI_CallFrame &frame, const std::vector<std::string> &, std::size_t) {
    return static_cast<T>(frame.stream);
  }
};
template <>
struct Decoder<ArgSlot> {
  static constexpr int kind = 1;
  static AnyBuffer Decode(const XLA_FFI_CallFrame &frame, const std::vector<std::string> &,
                          std::size_t index) {
    return AnyBuffer(Operand(frame.args, index, "arguments"));
  }
};
template <>
struct Decoder<RetSlot> {
  static constexpr int kind = 2;
  static Result<AnyBuffer> Decode(const XLA_FFI_CallFrame &frame, const std::vector<std::string> &,
                                  std::size_t index) {
    return Result<AnyBuffer>(AnyBuffer(Operand(frame.rets, index, "results")));
  }
};
template <typename T>
struct Decoder<AttrSlot<T>> {
  static constexpr int kind = 3;
  static T Decode(const XLA_FFI_CallFrame &frame, const std::vector<std::string> &names,
                  std::size_t index) {
    if constexpr (std::is_same_v<T, double>) {
      return Attribute(frame.attrs, names[index], XLA_FFI_Scalar::kDouble).real;
    } else {
      constexpr auto type =
          std::is_same_v<T, bool> ? XLA_FFI_Scalar::kBool : XLA_FFI_Scalar::kInt64;
      return static_cast<T>(Attribute(frame.attrs, names[index], type).integer);
    }
  }
};

}  // namespace internal

template <ExecutionStage stage, typename... Slots>
class Binding {
 public:
  explicit Binding(std::vector<std::string> names) : names_(std::move(names)) {}

  template <typename T>
  auto Ctx() const {
    return Binding<stage, Slots..., internal::CtxSlot<T>>(names_);
  }
  template <typename T>
  auto Arg() const {
    return Binding<stage, Slots..., internal::ArgSlot>(names_);
  }
  template <typename T>
  auto Ret() const {
    return Binding<stage, Slots..., internal::RetSlot>(names_);
  }
  template <typename T>
  auto Attr(std::string name) const {
    std::vector<std::string> names = names_;
    names.push_back(std::move(name));
    return Binding<stage, Slots..., internal::AttrSlot<T>>(std::move(names));
  }

  template <typename Function>
  Error Call(Function function, const XLA_FFI_CallFrame &frame) const {
    if (frame.stage != static_cast<XLA_FFI_ExecutionStage>(stage)) {
      return Error(XLA_FFI_Error_Code_INVALID_ARGUMENT,
                   "Wrong execution stage: the handler is bound to " +
                       std::to_string(static_cast<int>(stage)) + " and was called for " +
                       std::to_string(static_cast<int>(frame.stage)));
    }
    return Apply(function, frame, std::index_sequence_for<Slots...>{});
  }

 private:
  // How many slots of the same kind come before slot `index`.
  static constexpr std::size_t Rank(std::size_t index) {
    constexpr int kinds[] = {internal::Decoder<Slots>::kind..., -1};
    std::size_t rank = 0;
    for (std::size_t i = 0; i < index; ++i) rank += kinds[i] == kinds[index] ? 1 : 0;
    return rank;
  }

  template <typename Function, std::size_t... index>
  Error Apply(Function function, const XLA_FFI_CallFrame &frame,
              std::index_sequence<index...>) const {
    return function(internal::Decoder<Slots>::Decode(frame, names_, Rank(index))...);
  }

  std::vector<std::string> names_;  // of the attributes
};

class Ffi {
 public:
  template <ExecutionStage stage = ExecutionStage::kExecute>
  static Binding<stage> Bind() {
    return Binding<stage>({});
  }
};

namespace internal {

XLA_FFI_Error *Failure(XLA_FFI_Error_Code code, const std::string &message);

// As in XLA, an exception that leaves a handler becomes the call's error.
template <typename Function, typename Bound>
XLA_FFI_Error *Dispatch(XLA_FFI_CallFrame *frame, Function function, const Bound &binding,
                        std::initializer_list<Traits> = {}) {
  try {
    Error error = binding.Call(function, *frame);
    if (error.success()) return nullptr;
    return Failure(error.code(), error.message());
  } catch (const std::exception &e) {
    return Failure(XLA_FFI_Error_Code_UNKNOWN, std::string("XLA FFI call failed: ") + e.what());
  }
}

}  // namespace internal
}  // namespace xla::ffi

#define XLA_FFI_DECLARE_HANDLER_SYMBOL(fn) extern "C" XLA_FFI_Error *fn(XLA_FFI_CallFrame *frame)

#define XLA_FFI_DEFINE_HANDLER_SYMBOL(fn, impl, ...)                 \
  extern "C" XLA_FFI_Error *fn(XLA_FFI_CallFrame *frame) {           \
    return ::xla::ffi::internal::Dispatch(frame, impl, __VA_ARGS__); \
  }
