// The other host thread: it keeps a resident 64-row buffer up to date while the program first runs.
#include <sys/random.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "emulation.h"

namespace emulation {
namespace {

constexpr int kRows = 64;
constexpr int kColumns = 16;
constexpr int kUpdatesPerSync = 64;
constexpr int kEvents = 56;
constexpr std::chrono::milliseconds kDecode{1};
// Host time that JAX spends on placing an array, and again on dispatching a small program.
constexpr std::chrono::microseconds kDispatch{50};

// What the thread does besides placing its rows; EMULATION_BACKGROUND picks one by name.
enum class Work {
  kMix,          // as JAX: copies on their own stream, events between the two, syncs at times
  kCopy,         // copies and kernels only: what a capture swallows is lost in silence
  kSynchronize,  // waits for the stream after every update
  kRecord,       // records one event again and again
  kWait,         // waits on the host for every update to have run
  kFeed,         // places the main thread's batch instead of its own rows
  kRefresh,      // writes whole rows again and again, which repairs whatever a capture swallowed
};

Work Parse(const std::string &name) {
  static const std::map<std::string, Work> kNames{
      {"mix", Work::kMix},       {"copy", Work::kCopy}, {"synchronize", Work::kSynchronize},
      {"record", Work::kRecord}, {"wait", Work::kWait}, {"feed", Work::kFeed},
      {"refresh", Work::kRefresh},
  };
  auto found = kNames.find(name);
  if (found == kNames.end()) {
    std::string known;
    for (const auto &[text, work] : kNames) known += (known.empty() ? "" : ", ") + text;
    throw std::runtime_error("EMULATION_BACKGROUND=" + name + " is none of " + known);
  }
  return found->second;
}

// Uniform in [0, 1), and another one in each of many processes forked from one.
double RandomFraction() {
  std::uint32_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits)) {
    throw std::runtime_error("the system gives no random bits");
  }
  return bits / 4294967296.0;
}

// The share of a refreshing thread's updates that come with something which nothing repeats.
double ShareOfOnce() {
  const char *text = std::getenv("EMULATION_ONCE");
  return text == nullptr || *text == '\0' ? 0.0 : std::atof(text);
}

// The share of processes in which the device loses the thread's first update, whatever is captured.
double ShareOfFaults() {
  const char *text = std::getenv("EMULATION_FAULT");
  return text == nullptr || *text == '\0' ? 0.0 : std::atof(text);
}

class Background {
 public:
  // The thread's whole life; returns when it was told to stop, throws on its first error.
  void Run(Work work, double period_ms, bool random_phase) {
    Prepare();
    loses_ = RandomFraction() < ShareOfFaults();
    Update(work == Work::kFeed ? Work::kCopy : work);
    loses_ = false;
    Check(cudaStreamSynchronize(CurrentDevice().compute), "synchronize the compute stream");
    Announce(work == Work::kFeed);
    // Where in its round the thread stands when the main thread comes to its captures is chance.
    sync_at_ = static_cast<std::uint64_t>(RandomFraction() * kUpdatesPerSync);
    double wait_ms = period_ms;
    if (random_phase) wait_ms *= RandomFraction();
    while (!Stopped(wait_ms)) {
      wait_ms = period_ms;
      if (work == Work::kFeed) {
        Serve();
      } else {
        Update(work);
      }
      ++updates;
    }
    if (work == Work::kRefresh) {
      for (int row = 0; row < kRows; ++row) Update(work);
    }
  }

  void AwaitFirst() {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return first_done_ || finished_; });
  }

  void Finish() {
    BatchFeed().Serve(false);
    std::lock_guard<std::mutex> guard(mutex_);
    finished_ = true;
    changed_.notify_all();
  }

  void Stop() {
    std::lock_guard<std::mutex> guard(mutex_);
    stop_ = true;
    changed_.notify_all();
  }

  // Rows that do not hold what every update up to now must have left in them; what was to happen
  // once and did not counts as one.
  int StaleRows() {
    Check(cudaStreamSynchronize(CurrentDevice().compute), "synchronize the compute stream");
    std::lock_guard<std::mutex> guard(mutex_);
    int stale = 0;
    for (int row = 0; row < kRows; ++row) {
      if (std::memcmp(resident_[row], expected_[row], sizeof(expected_[row])) != 0) ++stale;
    }
    return stale + (counted_ == expected_count_ ? 0 : 1);
  }

  std::atomic<std::uint64_t> updates{0};

 private:
  void Prepare() {
    for (cudaEvent_t &event : computed_) Check(cudaEventCreate(&event), "create an event");
    for (cudaEvent_t &event : copied_) Check(cudaEventCreate(&event), "create an event");
  }

  // One row: the new values go to the device, and a small kernel adds them into the resident
  // buffer, so that an update which never ran leaves its row wrong for good.
  void Update(Work work) {
    Device &device = CurrentDevice();
    std::int32_t batch[kColumns];
    int row = Advance(batch);
    bool whole = work == Work::kRefresh;
    if (whole) std::memcpy(batch, expected_[row], sizeof(batch));
    void *slot = staged_[row];
    if (work == Work::kMix) {
      // JAX copies on a stream of its own, which events order between the compute stream's work.
      // The events come from a pool: one that a capture holds is recorded anew some updates later.
      cudaEvent_t computed = computed_[count_ % kEvents];
      cudaEvent_t copied = copied_[count_ % kEvents];
      Check(cudaEventRecord(computed, device.compute), "record an event on the compute stream");
      Check(cudaStreamWaitEvent(device.host_to_device, computed), "wait for the compute stream");
      Check(cudaMemcpyAsync(slot, batch, sizeof(batch), cudaMemcpyHostToDevice,
                            device.host_to_device),
            "enqueue a copy to the device");
      std::this_thread::sleep_for(kDispatch);
      Check(cudaEventRecord(copied, device.host_to_device), "record an event on the copy stream");
      Check(cudaStreamWaitEvent(device.compute, copied), "wait for the copy stream");
    } else {
      Check(cudaMemcpyAsync(slot, batch, sizeof(batch), cudaMemcpyHostToDevice, device.compute),
            "enqueue a copy to the device");
      std::this_thread::sleep_for(kDispatch);
    }
    cudaLaunchHostKernel("dynamic_update_slice", device.compute, [this, row, whole, lost = loses_] {
      for (int i = 0; i < kColumns && !lost; ++i) {
        resident_[row][i] = staged_[row][i] + (whole ? 0 : resident_[row][i]);
      }
    });
    Check(cudaGetLastError(), "launch dynamic_update_slice");
    if (whole && RandomFraction() < once_) {
      ++expected_count_;
      cudaLaunchHostKernel("count", device.compute, [this] { ++counted_; });
      Check(cudaGetLastError(), "launch count");
    }
    std::this_thread::sleep_for(kDispatch);
    if (work == Work::kRecord) {
      Check(cudaEventRecord(computed_[0], device.compute), "record an event on the compute stream");
    } else if (work == Work::kWait) {
      AwaitOnHost(device.compute);
    } else if (work == Work::kSynchronize ||
               (work == Work::kMix && count_ % kUpdatesPerSync == sync_at_)) {
      Check(cudaStreamSynchronize(device.compute), "synchronize the compute stream");
    }
  }

  // The next row's number and values; what the row must then hold is kept on the host.
  int Advance(std::int32_t (&batch)[kColumns]) {
    std::lock_guard<std::mutex> guard(mutex_);
    int row = static_cast<int>(count_ % kRows);
    for (int i = 0; i < kColumns; ++i) {
      batch[i] = static_cast<std::int32_t>(count_ % 1021 + 1) * (i + 1);
      expected_[row][i] += batch[i];
    }
    ++count_;
    return row;
  }

  // As JAX waits for a result: by a callback behind the stream's work. Captured, it never runs.
  void AwaitOnHost(cudaStream_t stream) {
    {
      std::lock_guard<std::mutex> guard(mutex_);
      reached_ = false;
    }
    Check(cudaLaunchHostFunc(
              stream,
              [](void *self) {
                auto *background = static_cast<Background *>(self);
                std::lock_guard<std::mutex> guard(background->mutex_);
                background->reached_ = true;
                background->changed_.notify_all();
              },
              this),
          "enqueue a host callback");
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return reached_; });
  }

  void Serve() { BatchFeed().Place(CurrentDevice().compute); }

  void Announce(bool serving) {
    ++updates;
    BatchFeed().Serve(serving);
    std::lock_guard<std::mutex> guard(mutex_);
    first_done_ = true;
    changed_.notify_all();
  }

  bool Stopped(double wait_ms) {
    std::unique_lock<std::mutex> guard(mutex_);
    if (wait_ms <= 0) return stop_;
    return changed_.wait_for(guard, std::chrono::duration<double, std::milli>(wait_ms),
                             [this] { return stop_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool first_done_ = false;
  bool finished_ = false;
  bool stop_ = false;
  bool reached_ = false;

  std::uint64_t count_ = 0;
  std::uint64_t sync_at_ = 0;
  bool loses_ = false;
  double once_ = ShareOfOnce();
  std::uint64_t expected_count_ = 0;
  cudaEvent_t computed_[kEvents] = {};
  cudaEvent_t copied_[kEvents] = {};
  std::int32_t expected_[kRows][kColumns] = {};
  std::int32_t staged_[kRows][kColumns] = {};    // device memory
  std::int32_t resident_[kRows][kColumns] = {};  // device memory
  std::uint64_t counted_ = 0;                    // device memory
};

Background &TheBackground() {
  static auto *background = new Background;
  return *background;
}

}  // namespace

void Feed::Serve(bool serving) {
  std::lock_guard<std::mutex> guard(mutex_);
  serving_ = serving;
  changed_.notify_all();
}

bool Feed::Ask(void *to, const void *from, std::size_t bytes) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (!serving_) return false;
  std::memset(to, 0, bytes);
  to_ = to;
  from_ = from;
  bytes_ = bytes;
  asked_ = true;
  return true;
}

void Feed::AwaitPlaced() {
  std::unique_lock<std::mutex> guard(mutex_);
  changed_.wait(guard, [this] { return !asked_ || !serving_; });
}

void Feed::Place(cudaStream_t stream) {
  std::unique_lock<std::mutex> guard(mutex_);
  if (!changed_.wait_for(guard, kDecode, [this] { return asked_; })) return;
  std::this_thread::sleep_for(kDecode);  // the batch takes host time before it can be placed
  Check(cudaMemcpyAsync(to_, from_, bytes_, cudaMemcpyHostToDevice, stream),
        "enqueue a copy to the device");
  asked_ = false;
  changed_.notify_all();
}

Feed &BatchFeed() {
  static auto *feed = new Feed;
  return *feed;
}

}  // namespace emulation

using emulation::TheBackground;

extern "C" {

// Runs the background thread's life on the calling thread; the text of its error is that thread's.
int emulation_background_run(const char *work, double period_ms, int random_phase) {
  int failed = 0;
  try {
    TheBackground().Run(emulation::Parse(work), period_ms, random_phase != 0);
  } catch (const std::exception &e) {
    failed = emulation::Fail(e.what());
  }
  TheBackground().Finish();
  return failed;
}

// Returns once the first update has run, or the thread has ended without one.
void emulation_background_await_first() { TheBackground().AwaitFirst(); }

void emulation_background_stop() { TheBackground().Stop(); }

std::uint64_t emulation_background_updates() { return TheBackground().updates; }

// The number of stale rows, or -1.
int emulation_stale_rows() {
  try {
    return TheBackground().StaleRows();
  } catch (const std::exception &e) {
    emulation::Fail(e.what());
    return -1;
  }
}

}  // extern "C"
