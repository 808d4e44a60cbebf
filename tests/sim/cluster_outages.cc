// Outages of control, with jobs in one rack or across racks: control's thread stands still with its
// lock for several liveness timeouts. Jobs go on, and nobody is accused.
#include <algorithm>

#include "tests/sim/cluster_state.h"

namespace phub::sim {
namespace {

constexpr DurationNs kOutageMax = 10 * kSecond;

// Other jobs need control: to replace processes, to open lanes again within a short wait_timeout,
// or to learn why a core loop has closed a lane.
bool CanDoWithoutControl(const JobScript& script) {
  return script.crashes == 0 &&
         (script.fate == Fate::kCompletes || script.fate == Fate::kWorkerDies ||
          script.fate == Fate::kWorkerSilent);
}

}  // namespace

void Cluster::DrawOutages() {
  const bool suit =
      std::ranges::all_of(jobs_, [](const auto& job) { return CanDoWithoutControl(job->script); });
  if (!suit || !random_.Chance(1, 2)) return;
  outages_left_ = static_cast<std::uint32_t>(1 + random_.Below(3));
  for (const auto& job : jobs_) job->control_outages = true;
}

// The lanes of every worker are open.
bool Cluster::AllTrain() const {
  bool all = true;
  ForEachSeat([&](const Job&, const Seat& seat) {
    const SimWorker::State state = seat.worker().state();
    all &= state == SimWorker::State::kTraining;
  });
  return all;
}

void Cluster::BringOutage() {
  if (outages_left_ == 0 || !AllTrain() || !random_.Chance(1, 8)) return;
  SimDaemon& daemon = *rack_[random_.Below(rack_.size())];
  // Across racks, one at a time: a run's end is misunderstood if two daemons send it late.
  const auto is_stuck = [](const auto& each) { return each->control_is_stuck(); };
  if (daemon.control_is_stuck() ||
      (layout_ == Layout::kManyRacks && std::ranges::any_of(rack_, is_stuck))) {
    return;
  }
  --outages_left_;
  ++outages_;
  const auto duration = static_cast<DurationNs>(random_.Below(kOutageMax));
  daemon.StickControl(network_.clock().Now() + duration);
  outage_time_ += duration;
  const std::uint64_t before = daemon.Count(server::CoreCounter::rounds);
  network_.Schedule(network_.clock().Now() + duration, [this, &daemon, before] {
    rounds_without_control_ += daemon.Count(server::CoreCounter::rounds) - before;
  });
}

}  // namespace phub::sim
