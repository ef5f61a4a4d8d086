// The part of the CUDA runtime that the demo subject touches, emulated on host threads.
//
// Every stream has a worker thread, so work runs asynchronously and in order. A stream in capture
// sends whatever any thread enqueues on it to a graph; a graph that is destroyed never ran. Names,
// numbers and texts of errors are CUDA's own (CUDA Runtime API, "CUDA Error types"), so that what
// reads a GPU's log reads this one's. Not emulated: the legacy default stream (a null stream is
// refused), launching a graph, and the ban on unsafe calls in the non-relaxed capture modes.
#pragma once

#include <cstddef>
#include <functional>

enum cudaError_t : int {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorIllegalState = 401,
  cudaErrorNotReady = 600,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureInvalidated = 901,
  cudaErrorStreamCaptureMerge = 902,
  cudaErrorStreamCaptureUnmatched = 903,
  cudaErrorStreamCaptureUnjoined = 904,
  cudaErrorStreamCaptureIsolation = 905,
  cudaErrorStreamCaptureImplicit = 906,
  cudaErrorCapturedEvent = 907,
  cudaErrorStreamCaptureWrongThread = 908,
};

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
};

enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2,
};

enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2,
};

using cudaStream_t = struct CUstream_st *;
using cudaEvent_t = struct CUevent_st *;
using cudaGraph_t = struct CUgraph_st *;
using cudaHostFn_t = void (*)(void *user_data);

struct cudaDeviceProp {
  char name[256];
  int major;
  int minor;
  int multiProcessorCount;
};

inline constexpr unsigned int cudaStreamDefault = 0;
inline constexpr unsigned int cudaStreamNonBlocking = 1;
inline constexpr unsigned int cudaEventDisableTiming = 2;

extern "C" {

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError();
cudaError_t cudaPeekAtLastError();

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);

cudaError_t cudaMalloc(void **memory, std::size_t bytes);
cudaError_t cudaFree(void *memory);

cudaError_t cudaStreamCreate(cudaStream_t *stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags = 0);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventQuery(cudaEvent_t event);

cudaError_t cudaMemcpyAsync(void *to, const void *from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user_data);

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

}  // extern "C"

// Stands for `kernel<<<...>>>(...)`: runs `body` on the stream's worker. The first launch of a
// kernel in a process loads its module, which takes EMULATION_LOAD_MS. Like any kernel launch it
// reports through cudaGetLastError only.
void cudaLaunchHostKernel(const char *kernel, cudaStream_t stream, std::function<void()> body);
