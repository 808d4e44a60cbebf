#include "tests/sim/sim_daemon.h"

#include <fmt/format.h>

#include <utility>

#include "common/transport/shm/ring.h"

namespace phub::sim {
namespace {

// Jobs arrive during and after the survey.
constexpr std::uint64_t kSurveyMax = 100 * kMillisecond;
constexpr std::uint64_t kLongWorkMax = 5 * kMillisecond;

}  // namespace

server::TurnBudget DrawTurnBudget(SeededRandom& random) {
  server::TurnBudget budget;
  if (random.Chance(1, 4)) return budget;
  budget.at_once = random.Below(5);
  budget.keys = 1 + random.Below(3);
  budget.pieces = 1 + random.Below(4);
  budget.jobs = 1;
  budget.ranks = budget.keys;
  return budget;
}

SimDaemon::SimDaemon(SimNetwork& network, Random& random, const SimDaemonOptions& options)
    : network_(network), random_(random), options_(options) {
  std::vector<server::CoreHandle> handles;
  for (std::uint32_t core = 0; core < options_.core_count; ++core) {
    std::vector<transport::Transport*> transports;
    transports_.push_back(std::make_unique<SimTransport>(network, 256));
    transports.push_back(transports_.back().get());
    if (options_.shares_memory) {
      transports_.push_back(std::make_unique<transport::ShmTransport>(256));
      transports.push_back(transports_.back().get());
    }
    loops_.push_back(std::make_unique<server::CoreLoop>(
        CoreIndex{core}, network.clock(), transports, server::ControlOptions().liveness_timeout));
    handles.push_back({&loops_.back()->queues(), &loops_.back()->counters(), {}});
  }
  server::ControlOptions control;
  // A single daemon has no list.
  if (options_.rack_endpoints.size() > 1) control.rack_endpoints = options_.rack_endpoints;
  control.rack_self = options_.position;
  control.racks = options_.racks;
  control.rack_index = options_.rack;
  control.aggregator_count = options_.aggregators;
  control.rack_topology = options_.topology;
  control.topology_is_measured = options_.topology_is_measured;
  control.turn = options_.turn;
  control.lane_transports.push_back({.name = "tcp"});
  if (options_.shares_memory) {
    control.lane_transports.push_back({.name = "shm",
                                       .lane_bytes = transport::LaneMemoryBytes(
                                           options_.shm.ring_records, options_.shm.arena_bytes)});
  }
  control_ =
      std::make_unique<server::Control>(network.clock(), random, std::move(handles), control);
  control_->survey().SetSurveyor(*this);
  control_->turns().SetBackground(*this);
  if (options_.shares_memory)
    control_->host_memory().SetSharedMemoryEndpoint("phub-simulated", "this-boot");
}

void SimDaemon::Begin() {
  const auto duration = static_cast<DurationNs>(random_.Next() % kSurveyMax);
  network_.Schedule(network_.clock().Now() + duration, [this] {
    if (!alive_) return;
    Turn([this](server::Control& control) {
      control.survey().OnSurvey(server::MeasuredTopology{options_.topology, 1});
    });
  });
}

// One thread does all long work, in order.
void SimDaemon::Run(const std::string& /*tenant*/, std::function<void()> work,
                    std::function<void()> then) {
  long_work_.emplace_back(std::move(work), std::move(then));
  if (long_work_.size() == 1) RunLongWork();
}

void SimDaemon::RunLongWork() {
  const auto duration = static_cast<DurationNs>(random_.Next() % kLongWorkMax);
  network_.Schedule(network_.clock().Now() + duration, [this] {
    if (!alive_) return;
    ++long_works_;
    long_work_.front().first();
    CallControl([this](server::Control&) {
      const std::function<void()> then = std::move(long_work_.front().second);
      long_work_.pop_front();
      if (!long_work_.empty()) RunLongWork();
      then();
    });
  });
}

void SimDaemon::CheckTurn() {
  const std::size_t units = control_->turns().units();
  if (units <= options_.turn.Max()) return;
  mistake_ = fmt::format("{}: one turn under control's lock did {} units of work, the bound is {}",
                         endpoint(), units, options_.turn.Max());
}

bool SimDaemon::RunCore(std::uint32_t core) {
  if (!alive_ || !loops_[core]->RunOnce()) return false;
  loops_[core]->CheckInvariants();
  return true;
}

void SimDaemon::RunControl() {
  if (!alive_ || control_is_stuck()) return;
  RunWaitingCalls();
  const server::OnControl on_control;
  control_->Poll();
  CheckTurn();
  control_->CheckInvariants();
}

void SimDaemon::CallControl(std::function<void(server::Control&)> call) {
  if (!alive_) return;
  waiting_calls_.push_back(std::move(call));
  if (!control_is_stuck()) RunWaitingCalls();
}

void SimDaemon::RunWaitingCalls() {
  for (const auto& call : std::exchange(waiting_calls_, {})) Turn(call);
}

std::uint64_t SimDaemon::Count(server::CoreCounter counter) const {
  std::uint64_t sum = 0;
  for (const auto& loop : loops_) sum += loop->counters().Get(counter);
  return sum;
}

std::uint64_t SimDaemon::CountOfControl(const std::string& name) const {
  server::Metrics::Sampling sampling;
  const server::OnControl on_control;
  do {
    control_->turns().Begin();
  } while (!control_->metrics().SampleMore(sampling));
  for (std::size_t i = 0; i < server::kControlCounterCount; ++i) {
    if (fmt::format("phub_{}_total", server::kControlCounterNames[i]) == name)
      return sampling.sample.control_counters[i];
  }
  return 0;
}

void SimDaemon::Die(bool silent) {
  alive_ = false;
  closed_ = !silent;
  for (std::uint32_t core = 0; core < core_count(); ++core) {
    network_.Crash(node(core), silent ? 3600 * kSecond : kMillisecond);
  }
  if (silent) return;
  for (const auto& hear : on_closed_) hear();
}

}  // namespace phub::sim
