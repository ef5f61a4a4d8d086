// XLA's part in the demo: registered targets, a program's executions, and the C interface.
#include <cstring>
#include <memory>

#include "emulation.h"
#include "pybind11/pybind11.h"
#include "xla/ffi/api/ffi.h"

extern "C" void emulation_import_extension(pybind11::module_ *module);

namespace emulation {
namespace {

using Handler = XLA_FFI_Error *(*)(XLA_FFI_CallFrame *);
using Stages = std::map<std::string, Handler>;

struct Process {
  std::map<std::string, Stages> offered;     // what the extension's registrations() returns
  std::map<std::string, Stages> registered;  // what its importer passed on to XLA
  std::unique_ptr<Program> program;
  std::vector<unsigned char> output;
  std::string registrations;
  std::string device_name;
};

Process &State() {
  static auto *process = new Process;
  return *process;
}

thread_local std::string last_error;

void Import() {
  Process &process = State();
  if (!process.offered.empty()) return;
  pybind11::module_ module;
  emulation_import_extension(&module);
  for (const auto &[target, value] : module.call("registrations")) {
    Stages &stages = process.offered[target];
    if (const pybind11::capsule *only = value.as_capsule()) {
      stages["execute"] = reinterpret_cast<Handler>(only->get_pointer());
    } else {
      for (const auto &[stage, handler] : *value.as_dict()) {
        stages[stage] = reinterpret_cast<Handler>(handler.as_capsule()->get_pointer());
      }
    }
  }
}

void RunStage(Program &program, const Call &call, const char *key, XLA_FFI_ExecutionStage stage) {
  auto target = State().registered.find(call.target);
  if (target == State().registered.end()) {
    throw std::runtime_error("No registered implementation for FFI custom call to " + call.target +
                             " for platform emulated");
  }
  auto handler = target->second.find(key);
  if (handler == target->second.end()) {
    if (stage != XLA_FFI_ExecutionStage_EXECUTE) return;
    throw std::runtime_error(call.target + " has no execute stage");
  }
  XLA_FFI_CallFrame frame{stage, CurrentDevice().compute, {}, {}, call.attrs};
  for (const std::string &name : call.args) frame.args.push_back(program.buffers.at(name));
  for (const std::string &name : call.rets) frame.rets.push_back(program.buffers.at(name));
  std::unique_ptr<XLA_FFI_Error> error(handler->second(&frame));
  if (error != nullptr) throw std::runtime_error(error->message);
}

// Every stage of all calls comes before the next stage of any, as in XLA's thunk sequence.
void Execute(Program &program) {
  cudaStream_t stream = CurrentDevice().compute;
  auto &batch = program.inputs.at("x");
  void *resident = program.buffers.at("x").data;
  // A batch is placed by the background thread where that is its work, and was there before else.
  bool fed = BatchFeed().Ask(resident, batch.data(), batch.size());
  if (!program.executed) {
    for (const Call &call : program.calls) {
      RunStage(program, call, "prepare", XLA_FFI_ExecutionStage_PREPARE);
    }
    for (const Call &call : program.calls) {
      RunStage(program, call, "initialize", XLA_FFI_ExecutionStage_INITIALIZE);
    }
  }
  program.executed = true;
  if (fed) BatchFeed().AwaitPlaced();
  for (const std::string &name : program.outputs) {
    Check(cudaMemsetAsync(program.buffers.at(name).data, 0, program.memory.at(name).size(), stream),
          "enqueue a memset");
  }
  for (const Call &call : program.calls) {
    RunStage(program, call, "execute", XLA_FFI_ExecutionStage_EXECUTE);
  }
  Check(cudaStreamSynchronize(stream), "synchronize the compute stream");
  std::vector<unsigned char> &output = State().output;
  output.clear();
  for (const std::string &name : program.outputs) {
    const auto &bytes = program.memory.at(name);
    output.insert(output.end(), bytes.begin(), bytes.end());
  }
}

template <typename Function>
int Guarded(Function function) {
  try {
    function();
    return 0;
  } catch (const std::exception &e) {
    return Fail(e.what());
  }
}

}  // namespace

int Fail(const std::string &text) {
  last_error = text;
  return 1;
}

void Check(cudaError_t error, const std::string &what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error("Failed to " + what + ": " + cudaGetErrorName(error) + ": " +
                           cudaGetErrorString(error));
}

Device &CurrentDevice() {
  static auto *device = new Device;
  return *device;
}

}  // namespace emulation

namespace xla::ffi::internal {

const XLA_FFI_Buffer *Operand(const std::vector<XLA_FFI_Buffer> &buffers, std::size_t index,
                              const char *kind) {
  if (index < buffers.size()) return &buffers[index];
  throw std::invalid_argument("the handler binds more " + std::string(kind) + " than the call's " +
                              std::to_string(buffers.size()));
}

const XLA_FFI_Scalar &Attribute(const XLA_FFI_Attrs &attrs, const std::string &name,
                                XLA_FFI_Scalar::Type type) {
  for (const auto &[known, value] : attrs) {
    if (known != name) continue;
    if (value.type != type) throw std::invalid_argument("attribute " + name + " has another type");
    return value;
  }
  throw std::invalid_argument("the call has no attribute " + name);
}

XLA_FFI_Error *Failure(XLA_FFI_Error_Code code, const std::string &message) {
  return new XLA_FFI_Error{code, message};
}

}  // namespace xla::ffi::internal

using emulation::Check;
using emulation::Guarded;
using emulation::State;

// The C interface. Functions that can fail return 0 or 1; the text is in emulation_error().
extern "C" {

const char *emulation_error() { return emulation::last_error.c_str(); }

// "<target> <stage>" a line, for every handler that the extension offers.
const char *emulation_registrations() {
  int failed = Guarded([] {
    emulation::Import();
    std::string &text = State().registrations;
    text.clear();
    for (const auto &[target, stages] : State().offered) {
      for (const auto &[stage, handler] : stages) text += target + " " + stage + "\n";
    }
  });
  return failed ? nullptr : State().registrations.c_str();
}

int emulation_register(const char *target, const char *stage) {
  return Guarded([&] {
    State().registered[target][stage] = State().offered.at(target).at(stage);
  });
}

int emulation_open(int device) {
  return Guarded([&] {
    int count = 0;
    Check(cudaGetDeviceCount(&count), "count devices");
    Check(cudaSetDevice(device), "set device " + std::to_string(device));
    emulation::Device &opened = emulation::CurrentDevice();
    Check(cudaStreamCreateWithFlags(&opened.compute, cudaStreamNonBlocking), "create a stream");
    Check(cudaStreamCreateWithFlags(&opened.host_to_device, cudaStreamNonBlocking),
          "create a stream");
    cudaDeviceProp properties;
    Check(cudaGetDeviceProperties(&properties, device), "read device properties");
    State().device_name = properties.name;
  });
}

const char *emulation_device_name() { return State().device_name.c_str(); }

int emulation_compile(const char *program, const char *recipe) {
  return Guarded([&] {
    State().program =
        std::make_unique<emulation::Program>(emulation::MakeProgram(program, recipe));
  });
}

int emulation_execute() {
  return Guarded([] {
    if (State().program == nullptr) throw std::runtime_error("no program has been compiled");
    emulation::Execute(*State().program);
  });
}

const unsigned char *emulation_output() { return State().output.data(); }

std::uint64_t emulation_output_size() { return State().output.size(); }

}  // extern "C"
