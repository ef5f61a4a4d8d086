// A stand-in for CUPTI on a host without a GPU: tests play the driver through it.
//
// Its functions are those that the detector looks up, with CUPTI's own types from its own headers. A
// call is reported only where it was subscribed to, as CUPTI does.
#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

// Callback ids from 1; between them one that has no name, as there are in CUPTI's numbering.
const std::vector<const char *> kNames{
    nullptr,
    "cuStreamBeginCapture_v2",
    "cuStreamBeginCapture_v2_ptsz",
    nullptr,
    "cuStreamEndCapture",
    "cuLaunchKernel",
    "cuMemcpyHtoDAsync_v2",
    "cuGraphAddKernelNode_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphClone",
    "cuGraphLaunch",
    "cuStreamSynchronize",
    "cuEventQuery",
    "cuCtxGetCurrent",
};

CUpti_CallbackFunc callback = nullptr;
std::set<std::pair<int, unsigned>> enabled;

bool Is(const char *variable) { return std::getenv(variable) != nullptr; }

unsigned IdOf(const char *api) {
  for (unsigned id = 1; id < kNames.size(); ++id) {
    if (kNames[id] != nullptr && std::strcmp(kNames[id], api) == 0) return id;
  }
  std::abort();
}

void Report(const char *api, CUpti_ApiCallbackSite site, CUstream stream, CUresult status) {
  if (enabled.count({CUPTI_CB_DOMAIN_DRIVER_API, IdOf(api)}) == 0) return;
  CUpti_CallbackData data{};
  data.callbackSite = site;
  data.functionName = kNames[IdOf(api)];
  data.functionParams = &stream;
  data.functionReturnValue = site == CUPTI_API_EXIT ? &status : nullptr;
  callback(nullptr, CUPTI_CB_DOMAIN_DRIVER_API, IdOf(api), &data);
}

}  // namespace

extern "C" {

CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc function, void *) {
  if (Is("FAKE_CUPTI_TAKEN")) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  *subscriber = reinterpret_cast<CUpti_SubscriberHandle>(&callback);
  callback = function;
  return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) {
  enabled.clear();
  return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle, CUpti_CallbackDomain domain,
                                CUpti_CallbackId id) {
  if (Is("FAKE_CUPTI_REFUSES")) return CUPTI_ERROR_NOT_COMPATIBLE;
  if (enable != 0) enabled.insert({domain, id});
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetCallbackName(CUpti_CallbackDomain domain, uint32_t id, const char **name) {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || id >= kNames.size() || kNames[id] == nullptr) {
    return CUPTI_ERROR_INVALID_PARAMETER;
  }
  *name = kNames[id];
  return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
  if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
  } else {
    *text = "CUPTI_ERROR_NOT_COMPATIBLE";
  }
  return CUPTI_SUCCESS;
}

// The calling thread calls the driver on that stream, and makes so many graph nodes on the way.
void fake_call(const char *api, void *stream, int nodes, int status) {
  auto handle = static_cast<CUstream>(stream);
  Report(api, CUPTI_API_ENTER, handle, CUDA_SUCCESS);
  for (int n = 0; n < nodes; ++n) {
    CUpti_ResourceData resource{};
    if (enabled.count({CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED}) != 0) {
      callback(nullptr, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, &resource);
    }
  }
  Report(api, CUPTI_API_EXIT, handle, static_cast<CUresult>(status));
}

int fake_is_followed(const char *api) {
  return enabled.count({CUPTI_CB_DOMAIN_DRIVER_API, IdOf(api)}) != 0;
}

}  // extern "C"
