// What may go wrong in a World, and what control does about it.
#include <fmt/format.h>

#include <algorithm>

#include "tests/sim/sum_world.h"

namespace phub::aggregation::search {

void World::ApplyTrouble(const Event& event) {
  const auto log = [&](const char* text) {
    if (log_ != nullptr) Log(fmt::format(fmt::runtime(text), event.a));
  };
  CoreActions actions;
  switch (event.kind) {
    case Event::Kind::kLose:
      if (log_ != nullptr) Log("lost: " + TextOf(flying_[event.a].packet));
      --shape_.losses;
      flying_.erase(flying_.begin() + event.a);
      break;
    case Event::Kind::kLoseLane: {
      log("worker {} has a new lane");
      --shape_.lost_lanes;
      Worker& worker = workers_[event.a];
      worker.to_core.clear();
      worker.from_core.clear();
      worker.owed = 0;  // replies go only to ranks that pushed on the lane that they have
      WorkerActions repeated;
      worker.stream.LaneReopened(repeated);
      Perform(event.a, repeated);
      core_.LaneReopened(Rank{event.a}, actions);
      break;
    }
    case Event::Kind::kGiveUp:
      log("worker {} asks for parameters over tcp");
      --shape_.give_ups;
      Ask(event.a, ChunkIndex{event.b}, /*over_tcp=*/true);
      break;
    case Event::Kind::kReplace:
      log("another process is worker {}");
      --shape_.replacements;
      Replace(event.a);
      break;
    case Event::Kind::kRestart:
      log("the aggregator restarts");
      --shape_.restarts;
      aggregator_.slots.assign(aggregator_.slots.size(), {});
      aggregator_.published.assign(aggregator_.published.size(), {});
      if (shape_.mistake == Mistake::kRestartKeepsLease) break;
      aggregator_.lease = 0;
      if (control_ == Control::kContent) control_ = Control::kUnaware;
      break;
    case Event::Kind::kNotice:
      log("control notices that the aggregator has restarted");
      core_.Close(actions);
      control_ = shape_.grants_again ? Control::kMustGrant : Control::kContent;
      break;
    case Event::Kind::kEndJob:
      log("the job ends; another begins");
      --shape_.endings;
      EndJob();
      break;
    default: Fail("unknown event");
  }
  Perform(actions);
}

void World::Replace(std::uint32_t index) {
  const std::uint32_t process = workers_[index].process + 1;
  workers_[index] = Worker(shape_);
  Worker& worker = workers_[index];
  worker.process = process;
  std::ranges::fill(pushed_[index], 0);
  std::uint32_t first = shape_.iterations;
  for (std::uint32_t chunk = 0; chunk < shape_.chunks; ++chunk) {
    first = std::min(first, static_cast<std::uint32_t>(core_.iteration(ChunkIndex{chunk}).value));
  }
  worker.program.first = first;
  std::ranges::fill(worker.program.iterations, first);
  CoreActions actions;
  if (shape_.mistake == Mistake::kReplacementKeepsLease) {
    core_.LaneReopened(Rank{index}, actions);
  } else {
    const bool streams = core_.lease() != kNoLease;
    core_.Close(actions);
    // The messages for its predecessor are lost; the last one says that there is no stream.
    Perform(actions);
    actions.clear();
    worker.from_core.clear();
    core_.RankReplaced(Rank{index}, actions);
    if (streams) control_ = shape_.grants_again ? Control::kMustGrant : Control::kContent;
  }
  Perform(actions);
}

void World::Grant() {
  control_ = Control::kContent;
  aggregator_.lease = ++leases_;
  if (log_ != nullptr) Log(fmt::format("control grants lease {}", leases_));
  aggregator_.slots.assign(shape_.geometry.positions * shape_.geometry.blocks, {});
  aggregator_.values.assign(aggregator_.slots.size(), 0);
  if (shape_.mistake == Mistake::kPublishedBitmaps)
    aggregator_.published.assign(aggregator_.slots.size(), {});
  CoreActions actions;
  core_.Open(LeaseNumber{leases_}, actions);
  Perform(actions);
}

void World::EndJob() {
  ++job_;
  core_ = CoreStream(shape_.geometry, shape_.workers);
  StartJob();
}

void World::StartJob() {
  for (std::uint32_t i = 0; i < shape_.FirstChunks(); ++i)
    core_.AddChunk(shape_.Blocks()[i], Iteration{0});
  lives_ = 0;
  workers_.assign(shape_.workers, Worker(shape_));
  const std::size_t blocks = shape_.chunks * shape_.geometry.blocks;
  accumulators_.assign(blocks, 0);
  pushed_.assign(shape_.workers, std::vector<std::uint32_t>(blocks));
  phases_.assign(shape_.geometry.positions, 0);
  asked_.assign(shape_.geometry.positions, false);
  control_ = Control::kMustGrant;
}

}  // namespace phub::aggregation::search
