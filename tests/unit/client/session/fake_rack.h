// Fake daemons that form one rack, and the connections to them. A rack of one daemon reports no
// list.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client/session/connector.h"
#include "phub/client.h"
#include "tests/unit/client/session/fake_daemon.h"

namespace phub::client {

class FakeRack {
 public:
  // One daemon per element, with that many core loops.
  explicit FakeRack(const std::vector<std::uint32_t>& core_counts, FakeDaemonOptions options = {});

  FakeDaemon& operator[](std::size_t i) { return *daemons_[i]; }
  // Joins through the daemon at this position.
  Result<Job> Join(JobOptions options, std::size_t through = 0,
                   std::chrono::milliseconds call_timeout = std::chrono::milliseconds(5'000),
                   DurationNs notice_after = 5 * kSecond);
  // New connections to this daemon fail.
  void Hide(std::size_t i) { hidden_[i] = true; }

 private:
  class DirectConnector;

  std::vector<std::unique_ptr<FakeDaemon>> daemons_;
  std::vector<bool> hidden_;
};

}  // namespace phub::client
