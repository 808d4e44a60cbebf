// What every part of control uses and none owns alone: time, randomness, settings, the links to the
// core loops, the memory ledger, counters. Owned by Control, outlives its parts; under control's
// lock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "server/control/control_options.h"
#include "server/control/core_link.h"
#include "server/control/counters.h"
#include "server/tenant/ledger.h"

namespace phub::server {

// Where clients find a core loop's lanes.
struct LaneEndpoint {
  std::string host;
  std::uint16_t port = 0;
};

// No new jobs; running ones may go on until the deadline. admin/draining.h has the rules.
struct DrainState {
  bool draining = false;
  bool stopping = false;  // draining because the daemon stops: it cannot be undone
  TimeNs deadline = 0;
  DurationNs timeout = 0;  // when the administrator names none; may change while control runs
};

struct Context {
  Context(const Clock& clock, Random& random, std::vector<CoreHandle> handles,
          ControlOptions options);

  // Counts and logs a refusal, and returns its status.
  absl::Status Refuse(ControlCounter counter, absl::Status status);

  const Clock& clock;
  Random& random;
  const ControlOptions options;
  const TimeNs started_at;
  CoreLinks cores;
  std::vector<LaneEndpoint> endpoints;  // [core]
  Ledger ledger;
  ControlCounters counters;
  DrainState drain;
  // Control was busy itself for so long and heard nobody: see Liveness::ForgiveSilence.
  std::function<void(DurationNs)> forgive_silence;
};

// Runs heavy work (building a shard) and forgives the workers the silence that it causes.
class SilenceGuard {
 public:
  explicit SilenceGuard(const Context& context);
  ~SilenceGuard();
  SilenceGuard(const SilenceGuard&) = delete;
  SilenceGuard& operator=(const SilenceGuard&) = delete;

 private:
  const Context& context_;
  const TimeNs begun_at_;
};

}  // namespace phub::server
