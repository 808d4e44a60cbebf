#include "tests/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "tests/sim/cluster_state.h"

namespace phub::sim {
namespace {

constexpr NodeId kFirstWorkerNode = 400;
constexpr TimeNs kTimeLimit = 300 * kSecond;     // virtual; a longer run counts as hung
constexpr DurationNs kTick = 20 * kMillisecond;  // virtual time advances at least this often

Fate DrawFate(SeededRandom& random) {
  if (random.Chance(2, 3)) return Fate::kCompletes;
  return static_cast<Fate>(1 + random.Below(10));
}

SimNetworkOptions DrawNetwork(SeededRandom& random) {
  const auto rate = [&](std::uint64_t per_million) {
    return random.Chance(1, 2) ? 0u : static_cast<std::uint32_t>(random.Below(per_million));
  };
  SimNetworkOptions options;
  options.latency_min = static_cast<DurationNs>(1 + random.Below(100)) * kMicrosecond;
  options.latency_jitter = static_cast<DurationNs>(random.Below(20)) * 100 * kMicrosecond;
  options.bytes_per_second = random.Chance(1, 4) ? 1'000'000 + random.Below(100'000'000) : 0;
  options.pipe_bytes = static_cast<std::uint32_t>(64 + random.Below(16 * 1024));
  options.split_read_chance = rate(900'000);
  options.partial_write_chance = rate(500'000);
  options.clog_chance = rate(20'000);
  options.clog_max = static_cast<DurationNs>(1 + random.Below(100)) * kMillisecond;
  options.limits.send_queue =
      static_cast<std::uint32_t>(1 + random.Below(random.Chance(1, 2) ? 3 : 64));
  options.limits.received_lent = static_cast<std::uint32_t>(1 + random.Below(8));
  return options;
}

DurationNs DrawPause(SeededRandom& random) {
  constexpr DurationNs kPauses[] = {20 * kMillisecond, 200 * kMillisecond, 3 * kSecond};
  const auto longest = static_cast<std::uint64_t>(kPauses[random.Below(3)]);
  return static_cast<DurationNs>(random.Below(longest));
}

}  // namespace

Cluster::Cluster(Layout layout, std::uint64_t seed, oracle::Order order)
    : layout_(layout),
      order_(order),
      random_(seed),
      network_(random_.Next(), DrawNetwork(random_)),
      control_random_(random_.Next()),
      next_node_(kFirstWorkerNode) {
  if (layout_ == Layout::kOneRack) {
    BuildRack();
    DrawJobs();
  } else {
    BuildRacks();
    DrawRackJobs();
  }
  DrawOutages();
  breaks_per_second_ = random_.Below(40);
  faults_until_ = static_cast<TimeNs>(random_.Below(3'000)) * kMillisecond;
  doomed_ = static_cast<std::uint32_t>(random_.Below(rack_.size()));
}

Cluster::~Cluster() = default;

void Cluster::BuildRack() {
  const std::uint64_t count = random_.Chance(1, 2) ? 1 : 2 + random_.Below(2);
  SimDaemonOptions options;
  for (std::uint64_t i = 0; i < count; ++i) {
    options.rack_endpoints.push_back(fmt::format("rack{}:7700", i));
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    options.position = i;
    options.first_node = i * kNodesPerDaemon;
    options.core_count = static_cast<std::uint32_t>(1 + random_.Below(3));
    options.turn = DrawTurnBudget(random_);
    options.shares_memory = random_.Chance(1, 2);
    options.shm.ring_records = wire::kRingRecordsMin << random_.Below(6);
    options.shm.arena_bytes = wire::kArenaBytesMin;
    options.shm.send_queue = network_.options().limits.send_queue;
    options.shm.received_lent = network_.options().limits.received_lent;
    rack_.push_back(std::make_unique<SimDaemon>(network_, control_random_, options));
  }
}

void Cluster::DrawJobs() {
  const std::uint64_t job_count = 1 + random_.Below(2);
  Fate fate = DrawFate(random_);
  if (fate == Fate::kLanesCut && rack_.size() < 2) fate = Fate::kCompletes;
  for (std::uint64_t i = 0; i < job_count; ++i) {
    AddJob(DrawJob(random_, fmt::format("job{}", i), fate, rack_.size() == 1), 0);
    // A daemon's death affects every job of the rack. Other faults affect at most one job; the
    // others must complete, undisturbed.
    if (!jobs_.back()->script.loses_daemon()) fate = Fate::kCompletes;
  }
}

void Cluster::AddJob(JobScript script, std::uint32_t first_rack) {
  jobs_.push_back(std::make_unique<Job>());
  Job& job = *jobs_.back();
  job.script = std::move(script);
  job.first_rack = first_rack;
  job.seats.resize(job.script.world_size);
  for (std::uint32_t rank = 0; rank < job.script.world_size; ++rank) AddProcess(job, rank);
}

void Cluster::AddProcess(Job& job, std::uint32_t rank) {
  std::span<const std::unique_ptr<SimDaemon>> daemons = rack_;
  if (layout_ == Layout::kManyRacks) {
    const std::uint32_t in_rack = job.script.world_size / job.script.racks;
    daemons = daemons.subspan((job.first_rack + rank / in_rack) * per_rack_, per_rack_);
  }
  job.seats[rank].processes.push_back(
      std::make_unique<SimWorker>(network_, daemons, random_, job, rank, next_node_++));
}

Outcome Cluster::Run() {
  for (const auto& peers : peer_networks_) peers->Start();
  StartWorkers();
  Tick();
  ScheduleBreak();
  for (auto& job : jobs_) ScheduleCrashes(*job);
  StartSavers();
  StartDumps();
  while (!Finished() && network_.clock().Now() < kTimeLimit && problem_.empty()) Advance();
  Outcome outcome;
  outcome.problem = problem_.empty() ? Judge() : problem_;
  outcome.description = Describe();
  outcome.virtual_time = network_.clock().Now();
  outcome.hash = network_.history_hash();
  outcome.coverage = Measure();
  ForEachSeat([&](const Job&, const Seat& seat) {
    outcome.hash = outcome.hash * 1099511628211u ^ seat.worker().ParameterHash();
  });
  return outcome;
}

void Cluster::StartWorkers() {
  ForEachSeat([&](const Job&, const Seat& seat) {
    network_.Schedule(static_cast<TimeNs>(random_.Below(50)) * kMillisecond,
                      [w = &seat.worker()] { w->Start(); });
  });
}

// Saves jobs while they train.
void Cluster::StartSavers() {
  for (const auto& job : jobs_) {
    // Checkpoints of jobs with groups are refused.
    if (!random_.Chance(1, 2) || !job->script.groups.empty()) continue;
    std::span<const std::unique_ptr<SimDaemon>> daemons = rack_;
    if (layout_ == Layout::kManyRacks) {
      daemons = daemons.subspan(job->first_rack * per_rack_, job->script.racks * per_rack_);
    }
    const SimWorker& rank0 = job->seats[0].worker();
    savers_.push_back(std::make_unique<SimSaver>(
        network_, daemons, random_, job->script, [this, &rank0](std::size_t position) {
          const bool trains = rank0.state() == SimWorker::State::kTraining;
          return trains ? rank0.SessionAt(position) : "";
        }));
    network_.Schedule(static_cast<TimeNs>(random_.Below(200)) * kMillisecond,
                      [saver = savers_.back().get()] { saver->Start(); });
  }
}

void Cluster::Tick() {
  network_.Schedule(network_.clock().Now() + kTick, [this] { Tick(); });
}

// Breaks lanes and streams of jobs with policy wait at random, until faults stop and all jobs must
// complete.
void Cluster::ScheduleBreak() {
  if (breaks_per_second_ == 0) return;
  const auto pause = static_cast<DurationNs>(
      random_.Below(2 * static_cast<std::uint64_t>(kSecond) / breaks_per_second_));
  network_.Schedule(network_.clock().Now() + pause, [this] {
    if (network_.clock().Now() > faults_until_) return;
    Job& job = *jobs_[random_.Below(jobs_.size())];
    job.seats[random_.Below(job.seats.size())].worker().BreakSomething();
    ScheduleBreak();
  });
}

// Kills processes of jobs that restart, at any moment, and starts others in their places.
void Cluster::ScheduleCrashes(Job& job) {
  for (std::uint32_t i = 0; i < job.script.crashes; ++i) {
    network_.Schedule(network_.clock().Now() + DrawPause(random_),
                      [this, &job] { CrashSomebody(job); });
  }
}

void Cluster::CrashSomebody(Job& job) {
  const auto rank = static_cast<std::uint32_t>(random_.Below(job.seats.size()));
  Seat& seat = job.seats[rank];
  const SimWorker::State state = seat.worker().state();
  if (state != SimWorker::State::kJoining && state != SimWorker::State::kTraining) return;
  ++crashes_;
  seat.worker().Crash(/*silent=*/random_.Chance(1, 3));
  seat.awaited = true;
  network_.Schedule(network_.clock().Now() + DrawPause(random_), [this, &job, rank] {
    job.seats[rank].awaited = false;
    AddProcess(job, rank);
    job.seats[rank].worker().Start();
  });
}

// Every node gets a turn, in random order, sometimes none; then time advances.
void Cluster::Advance() {
  std::vector<SimWorker*> workers;
  ForEachSeat([&](const Job&, const Seat& seat) { workers.push_back(&seat.worker()); });
  std::vector<std::pair<SimDaemon*, std::uint32_t>> cores;
  for (const auto& daemon : rack_) {
    for (std::uint32_t core = 0; core < daemon->core_count(); ++core) {
      cores.emplace_back(daemon.get(), core);
    }
  }
  const std::size_t count = cores.size() + workers.size() + rack_.size();
  const std::size_t start = random_.Below(count);
  bool worked = false;
  for (std::size_t i = 0; i < count; ++i) {
    if (random_.Chance(1, 8)) continue;
    const std::size_t who = (start + i) % count;
    if (who < cores.size()) {
      worked |= cores[who].first->RunCore(cores[who].second);
    } else if (who < cores.size() + workers.size()) {
      worked |= workers[who - cores.size()]->Run();
    } else {
      rack_[who - cores.size() - workers.size()]->RunControl();
    }
  }
  BringFates();
  BringOutage();
  for (const SimWorker* worker : workers) {
    if (!worker->mistake().empty()) problem_ = worker->mistake();
  }
  for (const auto& saver : savers_) {
    if (!saver->mistake().empty()) problem_ = saver->mistake();
  }
  for (const auto& daemon : rack_) {
    if (!daemon->mistake().empty()) problem_ = daemon->mistake();
  }
  if (!worked) network_.Step();
}

void Cluster::BringFates() {
  for (auto& job : jobs_) {
    const JobScript& script = job->script;
    if (job->crashed_at != 0) continue;
    if (script.loses_daemon()) {
      if (daemon_died_at_ == 0) BringDaemonDeath();
      job->crashed_at = daemon_died_at_;
      continue;
    }
    if (script.fate == Fate::kRacksCut) {
      if (racks_cut_at_ == 0) CutRacks();
      job->crashed_at = racks_cut_at_;
      continue;
    }
    const bool silent = script.fate == Fate::kWorkerSilent ||
                        (script.fate == Fate::kNeverReturns && script.culprit % 2 == 0);
    const bool cut = script.fate == Fate::kLanesCut;
    const bool dies = script.fate == Fate::kWorkerDies || script.fate == Fate::kNeverReturns;
    if (!dies && !silent && !cut) continue;
    SimWorker& culprit = job->seats[script.culprit].worker();
    if (culprit.state() != SimWorker::State::kTraining) continue;
    if (culprit.progress() + 1 < script.culprit_iteration || !random_.Chance(1, 4)) continue;
    job->crashed_at = network_.clock().Now();
    if (!cut) {
      culprit.Crash(silent);
      continue;
    }
    lanes_cut_ |= culprit.CutLanes(static_cast<SimWorker::Cut>(random_.Below(3)));
  }
}

// At any time: while workers join, train or leave.
void Cluster::BringDaemonDeath() {
  const Job& first = *jobs_.front();
  const SimWorker& witness = first.seats[first.script.culprit].worker();
  if (witness.progress() + 1 < first.script.culprit_iteration || !random_.Chance(1, 16)) return;
  daemon_died_at_ = network_.clock().Now();
  rack_[doomed_]->Die(first.script.fate == Fate::kDaemonSilent);
}

bool Cluster::Finished() const {
  bool finished = true;
  ForEachSeat(
      [&](const Job&, const Seat& seat) { finished &= seat.worker().done() && !seat.awaited; });
  for (const auto& daemon : rack_) {
    if (!daemon->alive()) continue;
    finished &= daemon->control().job_count() == 0 && !daemon->works_long();
  }
  return finished;
}

Outcome RunSeed(Layout layout, std::uint64_t seed, oracle::Order order) {
  return Cluster(layout, seed, order).Run();
}

}  // namespace phub::sim
