// The emulated CUDA runtime: streams on worker threads, events, and relaxed stream capture.
#include "cuda_runtime.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "record.h"

namespace {

struct Capture;

// The part of a graph that events of its capture point at. It has a page of its own which becomes
// inaccessible with the graph, for good: whoever still uses it afterwards gets a real SIGSEGV and
// never another graph's memory.
struct GraphPage {
  Capture *capture;
  long events;
};

std::size_t PageSize() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }

GraphPage *MapPage() {
  void *memory =
      mmap(nullptr, PageSize(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return new (memory) GraphPage{nullptr, 0};
}

// What cudaEventRecord puts into a stream.
struct Marker {
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;

  void Set() {
    std::lock_guard<std::mutex> guard(mutex);
    done = true;
    reached.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> guard(mutex);
    reached.wait(guard, [this] { return done; });
  }
  bool Done() {
    std::lock_guard<std::mutex> guard(mutex);
    return done;
  }
};

// One lock for what CUDA guards by its context: who captures, and the order of what is enqueued.
// Leaked on purpose, as workers outlive static destruction.
std::mutex &RuntimeLock() {
  static auto *lock = new std::mutex;
  return *lock;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t Report(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

// What captures take in is told as the detector tells it on CUDA; null where nobody asked. It begins
// with the device, as the driver loads a detector with its own initialisation.
racewatch::Record *TheRecord() {
  static racewatch::Record *record = [] {
    racewatch::Record *begun = racewatch::Record::Begin();
    if (begun != nullptr) begun->Watch();
    return begun;
  }();
  return record;
}

int FromEnvironment(const char *name, int fallback) {
  const char *text = std::getenv(name);
  return text == nullptr || *text == '\0' ? fallback : std::atoi(text);
}

}  // namespace

struct CUstream_st {
  int device = 0;
  Capture *capture = nullptr;  // guarded by RuntimeLock

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  bool busy = false;
  bool closed = false;

  void Push(std::function<void()> work) {
    std::lock_guard<std::mutex> guard(mutex);
    queue.push_back(std::move(work));
    changed.notify_all();
  }
  bool Idle() {
    std::lock_guard<std::mutex> guard(mutex);
    return queue.empty() && !busy;
  }
  void Close() {
    std::lock_guard<std::mutex> guard(mutex);
    closed = true;
    changed.notify_all();
  }
  // The worker thread; a closed stream finishes what it has, then frees itself, as CUDA's do.
  void Work() {
    std::unique_lock<std::mutex> guard(mutex);
    for (;;) {
      changed.wait(guard, [this] { return !queue.empty() || closed; });
      if (queue.empty()) break;
      std::function<void()> work = std::move(queue.front());
      queue.pop_front();
      busy = true;
      guard.unlock();
      work();
      guard.lock();
      busy = false;
      changed.notify_all();
    }
    guard.unlock();
    delete this;
  }
};

struct CUevent_st {
  std::shared_ptr<Marker> marker;  // of the last record outside a capture
  GraphPage *page = nullptr;       // set while the last record went into a capture
  std::vector<int> nodes;          // the captured work that it stands for

  // A capture counts the events that stand for its work, so recording one anew writes to the former
  // capture's graph, destroyed or not.
  void LeaveCapture() {
    if (page == nullptr) return;
    --page->events;
    page = nullptr;
    nodes.clear();
  }
};

struct CUgraph_st {
  GraphPage *page;
  std::vector<std::vector<int>> parents;            // of each node
  std::vector<std::function<void()>> captured;  // work that runs only if someone launches it

  int Add(std::function<void()> work, std::vector<int> after) {
    captured.push_back(std::move(work));
    parents.push_back(std::move(after));
    return static_cast<int>(captured.size()) - 1;
  }
  std::set<int> Ancestors(const std::vector<int> &nodes) const {
    std::set<int> found;
    std::vector<int> open = nodes;
    while (!open.empty()) {
      int node = open.back();
      open.pop_back();
      if (!found.insert(node).second) continue;
      open.insert(open.end(), parents[node].begin(), parents[node].end());
    }
    return found;
  }
};

namespace {

struct Capture {
  cudaStream_t origin;
  std::thread::id thread;
  cudaStreamCaptureMode mode;
  cudaGraph_t graph;
  bool invalid = false;
  std::map<cudaStream_t, std::vector<int>> tails;  // the streams in it, and their last nodes
  std::uint64_t number = 0;                        // of all that were begun in the process
  racewatch::Clock::time_point began = racewatch::Clock::now();

  void Append(cudaStream_t stream, const char *api, std::function<void()> work) {
    auto &tail = tails[stream];
    tail = {graph->Add(std::move(work), tail)};
    racewatch::Record *record = TheRecord();
    if (record == nullptr) return;
    if (thread == std::this_thread::get_id()) {
      record->CountOwn();
    } else {
      record->CountForeign(api, number, began);
    }
  }
  // Another thread's call is not allowed while this goes on.
  void Refuse(const char *api) const {
    racewatch::Record *record = TheRecord();
    if (record != nullptr && thread != std::this_thread::get_id()) {
      record->CountRefused(api, number, began);
    }
  }
  bool Joined() const {
    std::set<int> joined = graph->Ancestors(tails.at(origin));
    for (const auto &[stream, tail] : tails) {
      for (int node : tail) {
        if (joined.count(node) == 0) return false;
      }
    }
    return true;
  }
};

void Retire(cudaGraph_t graph) {
  mprotect(graph->page, PageSize(), PROT_NONE);
  delete graph;
}

// Enqueues, or captures, `work` of a call of `api`; the caller holds RuntimeLock.
cudaError_t Submit(cudaStream_t stream, const char *api, std::function<void()> work) {
  if (stream->capture == nullptr) {
    stream->Push(std::move(work));
    return cudaSuccess;
  }
  if (stream->capture->invalid) {
    stream->capture->Refuse(api);
    return cudaErrorStreamCaptureInvalidated;
  }
  stream->capture->Append(stream, api, std::move(work));
  return cudaSuccess;
}

// What CUDA answers to an operation that no capture can hold: the capture is spoiled, too.
cudaError_t Spoil(Capture *capture, const char *api, cudaError_t error) {
  capture->Refuse(api);
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  capture->invalid = true;
  return error;
}

// The event's last record went into a capture, so nothing on the host can wait for it.
cudaError_t RefuseCaptured(cudaEvent_t event, const char *api) {
  if (event->page->capture != nullptr) Spoil(event->page->capture, api, cudaErrorCapturedEvent);
  return cudaErrorCapturedEvent;
}

// Modules are loaded once per process and device, by whoever first launches from them; others that
// want the same one wait for it. Nothing else waits, as on a GPU.
class Modules {
 public:
  void Load(int device, const char *kernel) {
    std::unique_lock<std::mutex> guard(mutex_);
    auto [entry, first] = loaded_.try_emplace({device, kernel}, false);
    if (!first) {
      done_.wait(guard, [&entry = entry] { return entry->second; });
      return;
    }
    guard.unlock();
    // The load itself: it stands for reading and relocating a cubin, and holds no lock meanwhile.
    const char *text = std::getenv("EMULATION_LOAD_MS");
    double milliseconds = text == nullptr || *text == '\0' ? 4.0 : std::atof(text);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(milliseconds));
    guard.lock();
    entry->second = true;
    done_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::map<std::pair<int, std::string>, bool> loaded_;
};

Modules &LoadedModules() {
  static auto *modules = new Modules;
  return *modules;
}

struct ErrorText {
  cudaError_t error;
  const char *name;
  const char *text;
};

#define ERROR_TEXT(name, text) {name, #name, text}
const ErrorText kErrors[] = {
    ERROR_TEXT(cudaSuccess, "no error"),
    ERROR_TEXT(cudaErrorInvalidValue, "invalid argument"),
    ERROR_TEXT(cudaErrorMemoryAllocation, "out of memory"),
    ERROR_TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR_TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR_TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR_TEXT(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    ERROR_TEXT(cudaErrorNotReady, "device not ready"),
    ERROR_TEXT(cudaErrorStreamCaptureUnsupported,
               "operation not permitted when stream is capturing"),
    ERROR_TEXT(cudaErrorStreamCaptureInvalidated,
               "operation failed due to a previous error during capture"),
    ERROR_TEXT(cudaErrorStreamCaptureMerge,
               "operation would result in a merge of separate capture sequences"),
    ERROR_TEXT(cudaErrorStreamCaptureUnmatched, "capture was not initiated in this stream"),
    ERROR_TEXT(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    ERROR_TEXT(cudaErrorStreamCaptureIsolation,
               "dependency created on uncaptured work in another stream"),
    ERROR_TEXT(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capturing blocking stream"),
    ERROR_TEXT(cudaErrorCapturedEvent,
               "operation not permitted on an event last recorded in a capturing stream"),
    ERROR_TEXT(cudaErrorStreamCaptureWrongThread,
               "attempt to terminate a thread-local capture sequence from another thread"),
};
#undef ERROR_TEXT

const ErrorText *Find(cudaError_t error) {
  for (const ErrorText &entry : kErrors) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

const char *cudaGetErrorName(cudaError_t error) {
  const ErrorText *entry = Find(error);
  return entry == nullptr ? "unrecognized error code" : entry->name;
}

const char *cudaGetErrorString(cudaError_t error) {
  const ErrorText *entry = Find(error);
  return entry == nullptr ? "unrecognized error code" : entry->text;
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

cudaError_t cudaGetDeviceCount(int *count) {
  *count = std::max(0, FromEnvironment("EMULATION_DEVICES", 1));
  return Report(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return error;
  if (device < 0 || device >= count) return Report(cudaErrorInvalidDevice);
  current_device = device;
  TheRecord();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return error;
  if (device < 0 || device >= count) return Report(cudaErrorInvalidDevice);
  std::snprintf(properties->name, sizeof(properties->name), "Emulated device");
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return Report(*memory == nullptr && bytes > 0 ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void *memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  if (flags > cudaStreamNonBlocking) return Report(cudaErrorInvalidValue);
  auto *created = new CUstream_st;
  created->device = current_device;
  std::thread([created] { created->Work(); }).detach();
  *stream = created;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  {
    std::lock_guard<std::mutex> guard(RuntimeLock());
    if (stream->capture != nullptr) {
      return Report(Spoil(stream->capture, __func__, cudaErrorStreamCaptureUnsupported));
    }
  }
  stream->Close();
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  // Waits for what is enqueued now, not for a queue that another thread may never let run empty.
  auto marker = std::make_shared<Marker>();
  {
    std::lock_guard<std::mutex> guard(RuntimeLock());
    if (stream->capture != nullptr) {
      return Report(Spoil(stream->capture, __func__, cudaErrorStreamCaptureUnsupported));
    }
    stream->Push([marker] { marker->Set(); });
  }
  marker->Wait();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (stream->capture != nullptr) {
    return Report(Spoil(stream->capture, __func__, cudaErrorStreamCaptureUnsupported));
  }
  return stream->Idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  if (stream == nullptr || event == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (event->page == nullptr) {
    if (event->marker == nullptr) return cudaSuccess;  // never recorded: nothing to wait for
    if (stream->capture != nullptr) {
      return Report(Spoil(stream->capture, __func__, cudaErrorStreamCaptureIsolation));
    }
    stream->Push([marker = event->marker] { marker->Wait(); });
    return cudaSuccess;
  }
  Capture *capture = event->page->capture;
  if (capture == nullptr) return Report(cudaErrorCapturedEvent);
  if (capture->invalid) {
    capture->Refuse(__func__);
    return Report(cudaErrorStreamCaptureInvalidated);
  }
  if (stream->capture != nullptr && stream->capture != capture) {
    stream->capture->invalid = true;
    return Report(Spoil(capture, __func__, cudaErrorStreamCaptureMerge));
  }
  stream->capture = capture;  // a stream that waits for captured work joins the capture
  auto &tail = capture->tails[stream];
  for (int node : event->nodes) {
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  *event = new CUevent_st;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int) {
  return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  event->LeaveCapture();
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr || stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (stream->capture != nullptr && stream->capture->invalid) {
    stream->capture->Refuse(__func__);
    return Report(cudaErrorStreamCaptureInvalidated);
  }
  event->LeaveCapture();
  if (Capture *capture = stream->capture) {
    event->page = capture->graph->page;
    event->nodes = capture->tails[stream];
    ++event->page->events;
    return cudaSuccess;
  }
  event->marker = std::make_shared<Marker>();
  stream->Push([marker = event->marker] { marker->Set(); });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::shared_ptr<Marker> marker;
  {
    std::lock_guard<std::mutex> guard(RuntimeLock());
    if (event->page != nullptr) return Report(RefuseCaptured(event, __func__));
    marker = event->marker;
  }
  if (marker != nullptr) marker->Wait();
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (event->page != nullptr) return Report(RefuseCaptured(event, __func__));
  return event->marker == nullptr || event->marker->Done() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::function<void()> copy = [=] { std::memcpy(to, from, bytes); };
  if (kind == cudaMemcpyHostToDevice) {
    // Pageable host memory is staged before the call returns, so the caller may reuse it.
    auto *first = static_cast<const unsigned char *>(from);
    copy = [to, staged = std::vector<unsigned char>(first, first + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    };
  }
  std::lock_guard<std::mutex> guard(RuntimeLock());
  return Report(Submit(stream, "cudaMemcpyAsync", std::move(copy)));
}

cudaError_t cudaMemsetAsync(void *to, int value, std::size_t bytes, cudaStream_t stream) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  return Report(Submit(stream, "cudaMemsetAsync", [=] { std::memset(to, value, bytes); }));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user_data) {
  if (stream == nullptr) return Report(cudaErrorInvalidResourceHandle);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  return Report(Submit(stream, "cudaLaunchHostFunc", [=] { function(user_data); }));
}

void cudaLaunchHostKernel(const char *kernel, cudaStream_t stream, std::function<void()> body) {
  if (stream == nullptr) {
    Report(cudaErrorInvalidResourceHandle);
    return;
  }
  LoadedModules().Load(stream->device, kernel);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  Report(Submit(stream, "cudaLaunchKernel", std::move(body)));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return Report(cudaErrorStreamCaptureUnsupported);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (stream->capture != nullptr) return Report(cudaErrorIllegalState);
  GraphPage *page = MapPage();
  if (page == nullptr) return Report(cudaErrorMemoryAllocation);
  auto *capture = new Capture{stream, std::this_thread::get_id(), mode,
                              new CUgraph_st{page, {}, {}}, false, {{stream, {}}}};
  static std::uint64_t begun = 0;  // guarded by RuntimeLock
  capture->number = ++begun;
  page->capture = capture;
  stream->capture = capture;
  if (racewatch::Record *record = TheRecord()) record->CountWindow();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  if (stream == nullptr || graph == nullptr) return Report(cudaErrorInvalidValue);
  *graph = nullptr;
  std::lock_guard<std::mutex> guard(RuntimeLock());
  Capture *capture = stream->capture;
  if (capture == nullptr) return Report(cudaErrorIllegalState);
  if (capture->origin != stream) return Report(Spoil(capture, __func__, cudaErrorStreamCaptureUnmatched));
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return Report(cudaErrorStreamCaptureWrongThread);
  }
  cudaError_t error = cudaSuccess;
  if (capture->invalid) {
    error = cudaErrorStreamCaptureInvalidated;
  } else if (!capture->Joined()) {
    error = cudaErrorStreamCaptureUnjoined;
  }
  for (auto &[member, tail] : capture->tails) member->capture = nullptr;
  capture->graph->page->capture = nullptr;
  if (error == cudaSuccess) {
    *graph = capture->graph;
  } else {
    Retire(capture->graph);
  }
  delete capture;
  return Report(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
  if (stream == nullptr || status == nullptr) return Report(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  if (stream->capture == nullptr) {
    *status = cudaStreamCaptureStatusNone;
  } else {
    *status = stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  }
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (graph == nullptr) return Report(cudaErrorInvalidValue);
  std::lock_guard<std::mutex> guard(RuntimeLock());
  Retire(graph);
  return cudaSuccess;
}
