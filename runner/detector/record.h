// What was seen of a process's capture windows, in a mapped file that outlives a crash and a kill.
//
// Counts are in the file as soon as they are made and nothing is asked for at the end, so that a
// trial that ends by SIGSEGV, or is killed because it hangs, reports too. The CUPTI library and the
// emulated runtime both write it; runner/detector/record.py reads it.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

namespace racewatch {

using Clock = std::chrono::steady_clock;

// Asked each time: what a thread remembers of itself is wrong in a process that it forks.
inline long ThreadId() { return syscall(SYS_gettid); }

class Record {
 public:
  // Begins the record in the file that RACEWATCH_SWALLOW names; a sandbox may have made it, empty.
  // Null where it names none, where something is in it (an earlier process of the trial writes it, or
  // said why nothing does), and where it cannot be mapped, which standard error then tells.
  static Record *Begin() {
    const char *path = std::getenv("RACEWATCH_SWALLOW");
    if (path == nullptr || *path == '\0') return nullptr;
    void *memory = MAP_FAILED;
    int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    struct stat found = {};
    if (file >= 0 && fstat(file, &found) == 0) {
      if (found.st_size > 0) {
        close(file);
        return nullptr;
      }
      if (ftruncate(file, sizeof(Layout)) == 0) {
        memory = mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      }
    }
    int error = errno;
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) {
      std::fprintf(stderr, "racewatch: %s: %s\n", path, std::strerror(error));
      return nullptr;
    }
    return new Record(new (memory) Layout);
  }

  // From now on windows and nodes are seen.
  void Watch() { layout_->state = kWatching; }

  // Nothing will be seen, for that reason.
  void Refuse(const char *reason) {
    Copy(layout_->reason, reason);
    layout_->state = kRefused;
  }

  void CountWindow() { ++layout_->windows; }
  void CountOwn() { ++layout_->own; }

  // The calling thread's work went into another thread's window, which began at `began`.
  void CountForeign(const char *api, std::uint64_t window, Clock::time_point began) {
    Count(api, window, began);
    ++layout_->foreign;
  }

  // The calling thread's call was refused for another thread's window, which that most often breaks.
  void CountRefused(const char *api, std::uint64_t window, Clock::time_point began) {
    char refused[kApiName];
    std::snprintf(refused, sizeof(refused), "%.*s (refused)", kApiName - 11, api);
    Count(refused, window, began);
    ++layout_->refused;
  }

 private:
  void Count(const char *api, std::uint64_t window, Clock::time_point began) {
    auto inside = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - began);
    char thread[kThreadName];
    NameThread(thread);
    std::lock_guard<std::mutex> guard(mutex_);
    ++RowOf(api, thread).count;
    std::uint32_t firsts = layout_->firsts;
    if (firsts < kFirsts) {
      First &first = layout_->first[firsts];
      Copy(first.api, api);
      Copy(first.thread, thread);
      first.window = window;
      first.microseconds = static_cast<std::uint64_t>(inside.count());
      layout_->firsts = firsts + 1;
    }
  }

  // Whatever is changed here is changed in record.py, and in the last digit of kMagic.
  static constexpr char kMagic[] = "RWSWALW2";
  static constexpr int kApiName = 48;
  static constexpr int kThreadName = 16;  // the kernel's limit: prctl(2), PR_SET_NAME
  static constexpr std::uint32_t kRows = 64;
  static constexpr std::uint32_t kFirsts = 20;
  enum State : std::uint32_t { kBegun = 0, kWatching = 1, kRefused = 2 };

  struct Row {
    char api[kApiName];
    char thread[kThreadName];
    std::atomic<std::uint64_t> count;
  };
  struct First {
    char api[kApiName];
    char thread[kThreadName];
    std::uint64_t window;
    std::uint64_t microseconds;
  };
  struct Layout {
    Layout() { std::memcpy(magic, kMagic, sizeof(magic)); }
    char magic[8];
    std::atomic<std::uint32_t> state{kBegun};
    std::atomic<std::uint32_t> rows{0};
    std::atomic<std::uint32_t> firsts{0};
    std::atomic<std::uint32_t> refused{0};
    std::atomic<std::uint64_t> windows{0};
    std::atomic<std::uint64_t> own{0};
    std::atomic<std::uint64_t> foreign{0};
    char reason[256] = {};
    Row row[kRows] = {};
    First first[kFirsts] = {};
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  static_assert(sizeof(Layout) == 6512);

  explicit Record(Layout *layout) : layout_(layout) {}

  template <std::size_t size>
  static void Copy(char (&to)[size], const char *from) {
    std::snprintf(to, size, "%s", from);
  }

  static void NameThread(char (&name)[kThreadName]) {
    if (ThreadId() == getpid()) {
      Copy(name, "main");
    } else {
      prctl(PR_GET_NAME, name);
    }
  }

  // The row of that pair; once all are taken, what comes new shares the last.
  Row &RowOf(const char *api, const char *thread) {
    std::uint32_t rows = layout_->rows;
    for (std::uint32_t i = 0; i < rows; ++i) {
      Row &row = layout_->row[i];
      if (std::strncmp(row.api, api, kApiName - 1) == 0 && std::strcmp(row.thread, thread) == 0) {
        return row;
      }
    }
    if (rows == kRows) return layout_->row[kRows - 1];
    Row &row = layout_->row[rows];
    bool last = rows == kRows - 1;
    Copy(row.api, last ? "(other)" : api);
    Copy(row.thread, last ? "" : thread);
    layout_->rows = rows + 1;
    return row;
  }

  Layout *layout_;
  std::mutex mutex_;
};

}  // namespace racewatch
