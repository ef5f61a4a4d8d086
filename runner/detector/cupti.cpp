// The detector on CUDA: counts through CUPTI what other threads put into capture windows.
//
// The driver loads this library by itself, at its own initialisation, where CUDA_INJECTION64_PATH
// names it, and calls InitializeInjection (CUPTI documentation, "Injection"). CUPTI is looked for only
// then and is not linked: on a host without it, or in a process whose CUPTI a profiler has already,
// the trial runs without a detector and its record says why.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "record.h"
#include "windows.h"

namespace {

using racewatch::Record;
using racewatch::Windows;

Windows *windows = nullptr;

// The driver calls that this thread is in, the innermost last.
struct Calls {
  static constexpr int kKept = 8;
  const char *name[kKept];
  int depth;

  void Enter(const char *api) {
    if (depth < kKept) name[depth] = api;
    ++depth;
  }
  void Leave() {
    if (depth > 0) --depth;
  }
  const char *Current() const {
    if (depth == 0) return "(unknown)";
    return name[depth < kKept ? depth - 1 : kKept - 1];
  }
};
thread_local Calls calls;

bool StartsWith(const char *text, const char *prefix) {
  return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

bool BeginsCapture(const char *api) { return StartsWith(api, "cuStreamBeginCapture"); }
bool EndsCapture(const char *api) { return StartsWith(api, "cuStreamEndCapture"); }

// Makes nodes of a graph that the caller builds itself: cuGraphAdd*, cuGraphInstantiate*,
// cuGraphClone*, ... What it is given it was meant to take. A launch is work like any other.
bool BuildsGraph(const char *api) {
  return StartsWith(api, "cuGraph") && !StartsWith(api, "cuGraphLaunch");
}

// What may make a node or be refused by a capture, with what begins and ends a window: only these
// calls are worth the time that following them takes.
bool IsFollowed(const char *api) {
  static const char *const kPrefixes[] = {
      "cuStreamBeginCapture",
      "cuStreamEndCapture",
      "cuGraph",
      "cuLaunch",
      "cuMemcpy",
      "cuMemset",
      "cuMemAlloc",
      "cuMemFree",
      "cuMemPrefetch",
      "cuMemDiscard",
      "cuEventRecord",
      "cuEventQuery",
      "cuEventSynchronize",
      "cuStreamQuery",
      "cuStreamSynchronize",
      "cuCtxSynchronize",
      "cuStreamWait",   // ...Event, ...Value32, ...Value64
      "cuStreamWrite",  // ...Value32, ...Value64
      "cuStreamBatchMemOp",
      "cuStreamAddCallback",
      "cuStreamAttachMemAsync",
      "cuSignalExternalSemaphores",
      "cuWaitExternalSemaphores",
  };
  for (const char *prefix : kPrefixes) {
    if (StartsWith(api, prefix)) return true;
  }
  return false;
}

// The stream is the first parameter of every call that begins or ends a capture (CUPTI's
// generated_cuda_meta.h).
const void *StreamOf(const CUpti_CallbackData &call) {
  return *static_cast<const CUstream *>(call.functionParams);
}

CUresult StatusOf(const CUpti_CallbackData &call) {
  return *static_cast<const CUresult *>(call.functionReturnValue);
}

// What the driver answers to a call that a capture under way does not allow.
bool RefusedByCapture(CUresult status) {
  return status >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
         status <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

// Entered and left on the thread that calls the driver.
void Follow(const CUpti_CallbackData &call) {
  const char *api = call.functionName;
  if (call.callbackSite == CUPTI_API_ENTER) {
    calls.Enter(api);
    if (BeginsCapture(api)) windows->Opening(StreamOf(call));
    return;
  }
  calls.Leave();
  if (BeginsCapture(api)) {
    windows->Opened(StreamOf(call), StatusOf(call) == CUDA_SUCCESS);
  } else if (EndsCapture(api)) {
    // An error may come with the end of a capture (that it was invalidated, that work is unjoined);
    // with these two it goes on.
    CUresult status = StatusOf(call);
    if (status != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED &&
        status != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
      windows->Closed(StreamOf(call));
    }
  } else if (RefusedByCapture(StatusOf(call))) {
    windows->Refused(api);
  }
}

void CUPTIAPI OnCallback(void *, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                         const void *data) {
  if (domain == CUPTI_CB_DOMAIN_DRIVER_API) {
    Follow(*static_cast<const CUpti_CallbackData *>(data));
  } else if (domain == CUPTI_CB_DOMAIN_RESOURCE && id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
    if (!BuildsGraph(calls.Current())) windows->NodeMade(calls.Current());
  }
}

// The functions of CUPTI that are used, from a library that is found when it is needed.
class Cupti {
 public:
  // Looks for one that the process has already (JAX's, say), then for those of RACEWATCH_CUPTI
  // (paths between colons), then where the loader looks. Returns what is wrong, empty if nothing is.
  std::string Load() {
    static const char *const kNames[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (const char *name : kNames) Try(name, RTLD_NOLOAD);
    const char *paths = std::getenv("RACEWATCH_CUPTI");
    std::string rest = paths == nullptr ? "" : paths;
    while (library_ == nullptr && !rest.empty()) {
      std::size_t colon = rest.find(':');
      Try(rest.substr(0, colon).c_str(), 0);
      rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
    }
    for (const char *name : kNames) Try(name, 0);
    if (library_ == nullptr) return "no CUPTI here: " + error_;
    Find(subscribe, "cuptiSubscribe");
    Find(unsubscribe, "cuptiUnsubscribe");
    Find(enable, "cuptiEnableCallback");
    Find(name_of, "cuptiGetCallbackName");
    Find(text_of, "cuptiGetResultString");
    return missing_.empty() ? "" : "this CUPTI has no " + missing_;
  }

  // Of a result that is no success.
  std::string Describe(CUptiResult result) const {
    const char *text = nullptr;
    if (text_of(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "CUPTI error";
    return std::string(text) + " (" + std::to_string(result) + ")";
  }

  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable = nullptr;
  decltype(&cuptiGetCallbackName) name_of = nullptr;
  decltype(&cuptiGetResultString) text_of = nullptr;

 private:
  void Try(const char *name, int flags) {
    if (library_ != nullptr) return;
    library_ = dlopen(name, RTLD_NOW | flags);
    const char *error = library_ == nullptr ? dlerror() : nullptr;
    // The first real attempt is at what the trial's own packages hold, and tells the most.
    if (error != nullptr && flags == 0 && error_.empty()) error_ = error;
  }
  template <typename Function>
  void Find(Function &function, const char *name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }

  void *library_ = nullptr;
  std::string error_;
  std::string missing_;
};

// A newer driver may have more calls than the headers name; what has no name is passed over.
constexpr CUpti_CallbackId kCallbackIds = 4096;
static_assert(CUPTI_DRIVER_TRACE_CBID_SIZE < kCallbackIds);

CUptiResult Enable(const Cupti &cupti, CUpti_SubscriberHandle subscriber) {
  CUptiResult result = cupti.enable(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE,
                                    CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
  for (CUpti_CallbackId id = 1; id < kCallbackIds && result == CUPTI_SUCCESS; ++id) {
    const char *name = nullptr;
    if (cupti.name_of(CUPTI_CB_DOMAIN_DRIVER_API, id, &name) != CUPTI_SUCCESS) continue;
    if (name == nullptr || !IsFollowed(name)) continue;
    result = cupti.enable(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
  }
  return result;
}

// Returns why nothing is watched, empty if it is.
std::string Start(Record *record) {
  static auto *cupti = new Cupti;
  std::string wrong = cupti->Load();
  if (!wrong.empty()) return wrong;
  windows = new Windows(record);
  CUpti_SubscriberHandle subscriber = nullptr;
  CUptiResult result = cupti->subscribe(&subscriber, OnCallback, nullptr);
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return "a profiler has CUPTI already: " + cupti->Describe(result);
  }
  if (result != CUPTI_SUCCESS) return "CUPTI cannot be used: " + cupti->Describe(result);
  result = Enable(*cupti, subscriber);
  if (result == CUPTI_SUCCESS) return "";
  cupti->unsubscribe(subscriber);
  return "CUPTI cannot watch graphs: " + cupti->Describe(result);
}

}  // namespace

// Returns 1 in any case: the driver takes 0 for a failure of its own initialisation.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  Record *record = Record::Begin();
  if (record == nullptr) return 1;
  std::string wrong = Start(record);
  if (wrong.empty()) {
    record->Watch();
  } else {
    record->Refuse(wrong.c_str());
  }
  return 1;
}
