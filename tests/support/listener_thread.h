// For tests of listeners: a listener that its own thread polls until the test is over.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace phub {

template <typename Listener>
class ListenerThread {
 public:
  ListenerThread() = default;
  ~ListenerThread() { Stop(); }
  ListenerThread(const ListenerThread&) = delete;
  ListenerThread& operator=(const ListenerThread&) = delete;

  void Start(absl::StatusOr<std::unique_ptr<Listener>> created) {
    ASSERT_TRUE(created.ok()) << created.status();
    listener_ = *std::move(created);
    thread_ = std::thread([this] {
      while (!stop_) listener_->PollOnce(20 * kMillisecond);
    });
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  Listener* operator->() const { return listener_.get(); }
  Listener* get() const { return listener_.get(); }

 private:
  std::unique_ptr<Listener> listener_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace phub
