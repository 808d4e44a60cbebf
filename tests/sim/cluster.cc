#include "tests/sim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace phub::sim {
namespace {

constexpr NodeId kFirstWorkerNode = 100;
constexpr TimeNs kTimeLimit = 300 * kSecond;     // virtual; a run that needs more hangs
constexpr DurationNs kTick = 20 * kMillisecond;  // virtual time moves at least this often
// A fault must be known everywhere within the liveness timeout, plus a heartbeat, the diagnosis
// and the way there and back.
constexpr DurationNs kNoticeLimit = 2 * kSecond + 500 * kMillisecond + kSecond;

Fate DrawFate(SeededRandom& random) {
  if (random.Chance(2, 3)) return Fate::kCompletes;
  return static_cast<Fate>(1 + random.Below(6));
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

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed)
      : random_(seed),
        network_(random_.Next(), DrawNetwork(random_)),
        control_random_(random_.Next()) {
    const auto core_count = static_cast<std::uint32_t>(1 + random_.Below(3));
    daemon_ = std::make_unique<SimDaemon>(network_, control_random_, 0, core_count);
    const std::uint64_t job_count = 1 + random_.Below(2);
    for (std::uint64_t i = 0; i < job_count; ++i) {
      // One job at most is meant to fail: the others prove that nobody else is disturbed.
      const Fate fate = i == 0 ? DrawFate(random_) : Fate::kCompletes;
      jobs_.push_back(std::make_unique<Job>());
      jobs_.back()->script = DrawJob(random_, fmt::format("job{}", i), fate);
    }
    breaks_per_second_ = random_.Below(40);
    faults_until_ = static_cast<TimeNs>(random_.Below(3'000)) * kMillisecond;
    NodeId node = kFirstWorkerNode;
    for (auto& job : jobs_) {
      for (std::uint32_t rank = 0; rank < job->script.world_size; ++rank) {
        job->workers.push_back(std::make_unique<SimWorker>(network_, *daemon_, random_, job->script,
                                                           rank, node++, job->joined_count));
      }
    }
  }

  Outcome Run() {
    StartWorkers();
    Tick();
    ScheduleBreak();
    while (!Finished() && network_.clock().Now() < kTimeLimit && problem_.empty()) Advance();
    Outcome outcome;
    outcome.problem = problem_.empty() ? Judge() : problem_;
    outcome.description = Describe();
    outcome.virtual_time = network_.clock().Now();
    outcome.hash = network_.history_hash();
    outcome.coverage = Measure();
    for (const auto& job : jobs_) {
      for (const auto& worker : job->workers) {
        outcome.hash = outcome.hash * 1099511628211u ^ worker->ParameterHash();
      }
    }
    return outcome;
  }

 private:
  struct Job {
    JobScript script;
    std::vector<std::unique_ptr<SimWorker>> workers;
    TimeNs crashed_at = 0;
    std::uint32_t joined_count = 0;
  };

  void StartWorkers() {
    for (auto& job : jobs_) {
      for (auto& worker : job->workers) {
        network_.Schedule(static_cast<TimeNs>(random_.Below(50)) * kMillisecond,
                          [w = worker.get()] { w->Start(); });
      }
    }
  }

  void Tick() {
    network_.Schedule(network_.clock().Now() + kTick, [this] { Tick(); });
  }

  // Lanes of jobs with policy wait break now and then, until faults stop and all must complete.
  void ScheduleBreak() {
    if (breaks_per_second_ == 0) return;
    const auto pause = static_cast<DurationNs>(
        random_.Below(2 * static_cast<std::uint64_t>(kSecond) / breaks_per_second_));
    network_.Schedule(network_.clock().Now() + pause, [this] {
      if (network_.clock().Now() > faults_until_) return;
      Job& job = *jobs_[random_.Below(jobs_.size())];
      job.workers[random_.Below(job.workers.size())]->BreakSomeLane();
      ScheduleBreak();
    });
  }

  // Everybody gets a turn, in random order, now and then left out; then time moves on.
  void Advance() {
    std::vector<SimWorker*> workers;
    for (auto& job : jobs_) {
      for (auto& worker : job->workers) workers.push_back(worker.get());
    }
    const std::size_t count = daemon_->core_count() + workers.size() + 1;
    const std::size_t start = random_.Below(count);
    bool worked = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (random_.Chance(1, 8)) continue;
      const std::size_t who = (start + i) % count;
      if (who < daemon_->core_count()) {
        worked |= daemon_->RunCore(static_cast<std::uint32_t>(who));
      } else if (who + 1 < count) {
        worked |= workers[who - daemon_->core_count()]->Run();
      } else {
        daemon_->RunControl();
      }
    }
    BringFates();
    for (const SimWorker* worker : workers) {
      if (!worker->mistake().empty()) problem_ = worker->mistake();
    }
    if (!worked) network_.Step();
  }

  void BringFates() {
    for (auto& job : jobs_) {
      const JobScript& script = job->script;
      const bool silent = script.fate == Fate::kWorkerSilent;
      if ((script.fate != Fate::kWorkerDies && !silent) || job->crashed_at != 0) continue;
      SimWorker& culprit = *job->workers[script.culprit];
      if (culprit.state() != SimWorker::State::kTraining) continue;
      if (culprit.progress() + 1 < script.culprit_iteration || !random_.Chance(1, 4)) continue;
      job->crashed_at = network_.clock().Now();
      culprit.Crash(silent);
    }
  }

  bool Finished() {
    for (const auto& job : jobs_) {
      for (const auto& worker : job->workers) {
        if (!worker->done()) return false;
      }
    }
    return daemon_->control().job_count() == 0;
  }

  std::string Judge() {
    for (const auto& job : jobs_) {
      for (const auto& worker : job->workers) {
        if (!worker->done()) return fmt::format("hangs: {}", worker->Describe());
      }
    }
    if (daemon_->control().job_count() != 0 || daemon_->control().memory_bytes() != 0) {
      return fmt::format("control still holds {} jobs, {} bytes", daemon_->control().job_count(),
                         daemon_->control().memory_bytes());
    }
    for (const auto& job : jobs_) {
      for (const auto& worker : job->workers) {
        std::string problem = JudgeWorker(*job, *worker);
        if (!problem.empty()) return problem;
      }
    }
    return "";
  }

  static std::string JudgeWorker(const Job& job, const SimWorker& worker) {
    const JobScript& script = job.script;
    if (worker.state() == SimWorker::State::kDead) return "";
    if (worker.state() == SimWorker::State::kLeft) {
      // A culprit that had pushed its last may die unnoticed; a disagreement cannot pass.
      const bool may_complete = script.fate == Fate::kCompletes || job.crashed_at != 0 ||
                                script.fate == Fate::kLaneBreaks;
      return may_complete ? "" : fmt::format("completed in spite of it: {}", worker.Describe());
    }
    if (script.fate == Fate::kCompletes) return fmt::format("failed: {}", worker.Describe());
    if (job.crashed_at != 0 && worker.verdict_at() > job.crashed_at + kNoticeLimit) {
      return fmt::format("noticed after {} ms: {}",
                         (worker.verdict_at() - job.crashed_at) / kMillisecond, worker.Describe());
    }
    std::set<std::uint32_t> named;
    for (std::uint32_t rank = 0; rank < script.world_size; ++rank) {
      const std::string name = fmt::format("rank {}", rank);
      const std::size_t at = worker.verdict().find(name);
      if (at != std::string::npos) named.insert(rank);
    }
    if (!named.contains(script.culprit) ||
        worker.verdict().find(script.name) == std::string::npos) {
      return fmt::format("names neither rank {} nor its job: {}", script.culprit,
                         worker.Describe());
    }
    const bool disagreement = script.fate == Fate::kKeysDiffer ||
                              script.fate == Fate::kRecordsDiffer ||
                              script.fate == Fate::kRootsDiffer;
    if (disagreement && named.size() < 2) {
      return fmt::format("names only one side: {}", worker.Describe());
    }
    return "";
  }

  Coverage Measure() const {
    using server::CoreCounter;
    Coverage coverage;
    coverage.rounds = daemon_->Count(CoreCounter::rounds);
    coverage.gradients_folded = daemon_->Count(CoreCounter::gradients_folded);
    coverage.replies_deferred = daemon_->Count(CoreCounter::replies_deferred);
    coverage.duplicates_staged = daemon_->Count(CoreCounter::duplicates_staged);
    coverage.duplicates_applied = daemon_->Count(CoreCounter::duplicates_applied);
    coverage.staged_discarded = daemon_->Count(CoreCounter::staged_discarded);
    std::uint64_t lanes = 0;
    for (const auto& job : jobs_) {
      lanes += job->workers.size() * daemon_->core_count();
      coverage.jobs_failed += job->script.fate != Fate::kCompletes ? 1 : 0;
    }
    const std::uint64_t attached = daemon_->Count(CoreCounter::lanes_attached);
    coverage.lanes_replaced = attached > lanes ? attached - lanes : 0;
    return coverage;
  }

  std::string Describe() {
    const SimNetworkOptions& net = network_.options();
    std::string text = fmt::format(
        "cores={} latency_us={}+{} bytes_per_s={} pipe={} split={} partial={} clog={} "
        "send_queue={} received_lent={} breaks_per_s={}",
        daemon_->core_count(), net.latency_min / kMicrosecond, net.latency_jitter / kMicrosecond,
        net.bytes_per_second, net.pipe_bytes, net.split_read_chance, net.partial_write_chance,
        net.clog_chance, net.limits.send_queue, net.limits.received_lent, breaks_per_second_);
    for (const auto& job : jobs_) {
      text += "\n  " + sim::Describe(job->script);
      for (const auto& worker : job->workers) text += "\n    " + worker->Describe();
    }
    return text;
  }

  SeededRandom random_;
  SimNetwork network_;
  SeededRandom control_random_;
  std::unique_ptr<SimDaemon> daemon_;
  std::vector<std::unique_ptr<Job>> jobs_;
  std::uint64_t breaks_per_second_ = 0;
  TimeNs faults_until_ = 0;
  std::string problem_;
};

}  // namespace

void Coverage::Add(const Coverage& other) {
  rounds += other.rounds;
  gradients_folded += other.gradients_folded;
  replies_deferred += other.replies_deferred;
  duplicates_staged += other.duplicates_staged;
  duplicates_applied += other.duplicates_applied;
  staged_discarded += other.staged_discarded;
  lanes_replaced += other.lanes_replaced;
  jobs_failed += other.jobs_failed;
}

Outcome RunSeed(std::uint64_t seed) { return Cluster(seed).Run(); }

}  // namespace phub::sim
