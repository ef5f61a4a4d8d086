// What the emulated process is made of: one device, the program it runs, the background thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "xla/ffi/api/c_api.h"

namespace emulation {

// Throws std::runtime_error in the words of XLA's stream executor if `error` is one.
void Check(cudaError_t error, const std::string &what);

// One call of a program: which registered target, on which of the program's buffers.
struct Call {
  std::string target;
  std::vector<std::string> args;
  std::vector<std::string> rets;
  XLA_FFI_Attrs attrs;
};

// A program as XLA would have compiled it: device buffers, and the calls in order.
class Program {
 public:
  void Input(const std::string &buffer, std::vector<std::int64_t> dims, int seed);
  void Integers(const std::string &buffer, std::vector<std::int64_t> dims,
                const std::vector<std::int32_t> &values);
  void Temporary(const std::string &buffer, XLA_FFI_DataType type, std::vector<std::int64_t> dims);
  void Output(const std::string &buffer, XLA_FFI_DataType type, std::vector<std::int64_t> dims);

  std::map<std::string, XLA_FFI_Buffer> buffers;
  std::map<std::string, std::vector<unsigned char>> memory;
  std::map<std::string, std::vector<unsigned char>> inputs;  // the host's copy
  std::vector<std::string> outputs;  // in the order of their bytes in a result
  std::vector<Call> calls;
  bool executed = false;

 private:
  void Allocate(const std::string &buffer, XLA_FFI_DataType type, std::vector<std::int64_t> dims);
};

// The program of that name at that precision; throws std::runtime_error if there is none.
Program MakeProgram(const std::string &name, const std::string &recipe);

// The process's device as XLA drives it: one stream for compute, one for copies to the device.
struct Device {
  cudaStream_t compute = nullptr;
  cudaStream_t host_to_device = nullptr;
};

Device &CurrentDevice();

// Hands the main thread's next batch to the background thread, where that thread places it.
class Feed {
 public:
  // Called by the background thread around its life.
  void Serve(bool serving);
  // The main thread asks for a copy of `bytes` at `from` to `to`; false if nobody serves.
  bool Ask(void *to, const void *from, std::size_t bytes);
  // The main thread waits until its copy has been enqueued.
  void AwaitPlaced();
  // The background thread enqueues the copy that was asked for, if any.
  void Place(cudaStream_t stream);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool serving_ = false;
  bool asked_ = false;
  void *to_ = nullptr;
  const void *from_ = nullptr;
  std::size_t bytes_ = 0;
};

Feed &BatchFeed();

// Keeps the text of the calling thread's last error for the C interface.
int Fail(const std::string &text);

}  // namespace emulation
