// A core loop of the daemon with its transports and its thread. The daemon creates and owns it;
// only the thread uses the loop and the transports.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/transport/transport.h"
#include "server/control/core_link.h"
#include "server/core/core_loop.h"
#include "server/core_thread.h"

namespace phub::server {

// One core loop and its parts. The transports come first because they must outlive the loop.
struct CoreUnit {
  std::vector<std::unique_ptr<transport::Transport>> owned_transports;
  std::vector<transport::Transport*> transports;  // [transport index]
  CoreLoop loop;
  std::unique_ptr<CoreThread> thread;  // created after control's doorbell
  std::uint64_t runs_seen = 0;         // by HasRun

  CoreUnit(CoreIndex core, const Clock& clock,
           std::vector<std::unique_ptr<transport::Transport>> given, DurationNs liveness_timeout)
      : owned_transports(std::move(given)),
        transports(Pointers(owned_transports)),
        loop(core, clock, transports, liveness_timeout) {}

  // Whether the loop has run since the last call; logs if not.
  bool HasRun() {
    const std::uint64_t runs = loop.counters().Get(CoreCounter::loop_runs);
    const bool has_run = runs != std::exchange(runs_seen, runs);
    if (!has_run) LogError("event=core_loop_hangs core={} runs={}", loop.core().value, runs);
    return has_run;
  }

  // Control's end of the loop; must not outlive this.
  CoreHandle Handle() {
    std::vector<transport::TransportCounter> counters;
    for (const transport::Transport* each : transports) {
      for (const transport::TransportCounter& counter : each->ListCounters())
        counters.push_back(counter);
    }
    return {&loop.queues(), &loop.counters(), [this] { thread->Wake(); }, std::move(counters)};
  }

 private:
  static std::vector<transport::Transport*> Pointers(
      const std::vector<std::unique_ptr<transport::Transport>>& owned) {
    std::vector<transport::Transport*> pointers;
    for (const auto& each : owned) pointers.push_back(each.get());
    return pointers;
  }
};

}  // namespace phub::server
