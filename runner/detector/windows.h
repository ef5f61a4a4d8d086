// Which threads hold a capture window open, and whose work a new graph node therefore is.
//
// A node is its maker's own where that thread has begun a capture and not ended it. Made by a thread
// that holds no window while another one does, it is foreign: work that was meant to run and went
// into the other's graph. A call of such a thread may also be refused, where no graph can hold what it
// asks for: then it met the other's window, and most often breaks it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "record.h"

namespace racewatch {

class Windows {
 public:
  explicit Windows(Record *record) : record_(record) {}

  // A thread enters the call that begins a capture. Others' work may go into it before that returns.
  void Opening(const void *stream) {
    std::lock_guard<std::mutex> guard(mutex_);
    open_.push_back({stream, ThreadId(), ++number_, Clock::now()});
  }

  // That call has returned.
  void Opened(const void *stream, bool succeeded) {
    if (succeeded) {
      record_->CountWindow();
    } else {
      Closed(stream);
    }
  }

  // A capture of that stream has ended, on whichever thread: its own where that has one.
  void Closed(const void *stream) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto found = open_.rend();
    for (auto at = open_.rbegin(); at != open_.rend(); ++at) {
      if (at->stream != stream) continue;
      // Several threads may capture "the" per-thread default stream, which is one handle.
      if (found == open_.rend() || at->owner == ThreadId()) found = at;
      if (at->owner == ThreadId()) break;
    }
    if (found != open_.rend()) open_.erase(std::next(found).base());
  }

  // The calling thread has made a graph node, in a call of that API.
  void NodeMade(const char *api) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (open_.empty()) return;
    if (Holds(ThreadId())) {
      record_->CountOwn();
    } else {
      record_->CountForeign(api, open_.back().number, open_.back().began);
    }
  }

  // The driver has refused the calling thread's call because a stream is being captured.
  void Refused(const char *api) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (open_.empty() || Holds(ThreadId())) return;
    record_->CountRefused(api, open_.back().number, open_.back().began);
  }

 private:
  bool Holds(long thread) const {
    return std::any_of(open_.begin(), open_.end(),
                       [=](const Window &window) { return window.owner == thread; });
  }

  struct Window {
    const void *stream;
    long owner;
    std::uint64_t number;
    Clock::time_point began;
  };

  Record *record_;
  std::mutex mutex_;
  std::uint64_t number_ = 0;
  std::vector<Window> open_;  // the newest last
};

}  // namespace racewatch
