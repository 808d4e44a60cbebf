// Checks that a run ended as its scripts say, and notes the rare events that it has seen.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/sim/cluster_state.h"

namespace phub::sim {
namespace {

// Every worker must learn of a fault within the liveness timeout, plus a heartbeat, the diagnosis,
// and the latency there and back.
constexpr DurationNs kNoticeLimit = 2 * kSecond + 500 * kMillisecond + kSecond;
constexpr DurationNs kOpeningLimit = 10 * kSecond;

bool Mentions(const SimWorker& worker, const std::string& name) {
  return worker.verdict().find(name) != std::string::npos;
}

}  // namespace

std::string Cluster::Judge() const {
  std::string problem;
  ForEachSeat([&](const Job&, const Seat& seat) {
    if (!seat.worker().done()) problem = fmt::format("hangs: {}", seat.worker().Describe());
  });
  if (problem.empty()) problem = JudgeDaemons();
  if (problem.empty()) problem = JudgeDumps();
  ForEachSeat([&](const Job& job, const Seat& seat) {
    if (problem.empty()) problem = JudgeWorker(job, seat.worker());
  });
  for (const auto& job : jobs_) {
    if (problem.empty()) problem = JudgeAgreement(*job);
  }
  return problem;
}

// All ranks end with the verdict that the anchor recorded first: in several racks, rack 0's.
std::string Cluster::JudgeAgreement(const Job& job) const {
  if (job.script.racks > 1 && (!rack_.front()->alive() || outages_ > 0)) return "";
  const SimWorker* first = nullptr;
  for (const Seat& seat : job.seats) {
    const SimWorker& worker = seat.worker();
    if (worker.state() != SimWorker::State::kFailed || !worker.agreed()) continue;
    if (first == nullptr) first = &worker;
    if (worker.verdict() == first->verdict()) continue;
    return fmt::format("ranks disagree: {}; {}", first->Describe(), worker.Describe());
  }
  return "";
}

std::string Cluster::JudgeDaemons() const {
  for (const auto& daemon : rack_) {
    server::Control& control = daemon->control();
    if (!daemon->alive() || (control.job_count() == 0 && control.memory_bytes() == 0)) continue;
    return fmt::format("{} still holds {} jobs, {} bytes", daemon->endpoint(), control.job_count(),
                       control.memory_bytes());
  }
  return "";
}

std::string Cluster::JudgeWorker(const Job& job, const SimWorker& worker) const {
  const JobScript& script = job.script;
  if (worker.state() == SimWorker::State::kDead) return "";
  if (worker.state() == SimWorker::State::kLeft) {
    // A worker that had pushed its last gradient may die unnoticed, but a disagreement must be
    // found.
    return !script.disagrees() ? ""
                               : fmt::format("completed in spite of it: {}", worker.Describe());
  }
  if (script.fate == Fate::kCompletes) return fmt::format("failed: {}", worker.Describe());
  if (script.loses_daemon()) return JudgeLostDaemon(job, worker);
  if (script.fate == Fate::kRacksCut) return JudgeCut(job, worker);
  if (script.fate == Fate::kLanesCut && worker.stands_alone()) {
    return fmt::format("took a verdict that is not the anchor's: {}", worker.Describe());
  }
  const DurationNs patience =
      (script.fate == Fate::kNeverReturns ? script.wait_timeout : 0) + outage_time_;
  if (job.crashed_at != 0 && worker.verdict_at() > job.crashed_at + kNoticeLimit + patience) {
    return fmt::format("noticed after {} ms: {}",
                       (worker.verdict_at() - job.crashed_at) / kMillisecond, worker.Describe());
  }
  return JudgeNames(job, worker);
}

std::string Cluster::JudgeLostDaemon(const Job& job, const SimWorker& worker) const {
  if (daemon_died_at_ == 0) return fmt::format("failed: {}", worker.Describe());
  // If a daemon dies while a job that spans racks is being opened, the job ends with the timeout
  // for opening.
  const DurationNs opening = job.script.racks > 1 && !worker.was_in() ? kOpeningLimit : 0;
  const DurationNs waiting = job.script.wait_policy ? job.script.wait_timeout : 0;
  const DurationNs patience = std::max(opening, waiting);
  if (worker.verdict_at() > daemon_died_at_ + kNoticeLimit + patience) {
    return fmt::format("noticed after {} ms: {}",
                       (worker.verdict_at() - daemon_died_at_) / kMillisecond, worker.Describe());
  }
  if (Mentions(worker, rack_[doomed_]->endpoint())) return "";
  // A worker that joins too late receives what its daemon knows by then: which job failed.
  if (!worker.was_in() && Mentions(worker, job.script.name)) return "";
  return fmt::format("does not name {}: {}", rack_[doomed_]->endpoint(), worker.Describe());
}

std::string Cluster::JudgeCut(const Job& job, const SimWorker& worker) const {
  if (racks_cut_at_ == 0) return fmt::format("failed: {}", worker.Describe());
  if (worker.verdict_at() > racks_cut_at_ + kNoticeLimit) {
    return fmt::format("noticed after {} ms: {}",
                       (worker.verdict_at() - racks_cut_at_) / kMillisecond, worker.Describe());
  }
  const bool names =
      Mentions(worker, rack_[cut_[0]]->endpoint()) || Mentions(worker, rack_[cut_[1]]->endpoint());
  if (names && Mentions(worker, job.script.name)) return "";
  return fmt::format("does not name a rack that was cut off: {}", worker.Describe());
}

// Two racks: the culprit's and another one.
bool Cluster::NamesRacksOf(const JobScript& script, const SimWorker& worker) const {
  const std::uint32_t own = script.culprit / (script.world_size / script.racks);
  bool other = false;
  bool itself = false;
  for (std::uint32_t i = 0; i < rack_.size(); ++i) {
    (i / per_rack_ == own ? itself : other) |= Mentions(worker, rack_[i]->endpoint());
  }
  return other && itself && Mentions(worker, script.name);
}

std::string Cluster::JudgeNames(const Job& job, const SimWorker& worker) const {
  const JobScript& script = job.script;
  // Racks compare what all ranks of a rack have pushed, so the error names racks instead of ranks.
  if (script.disagrees() && script.racks > 1 && NamesRacksOf(script, worker)) return "";
  std::set<std::uint32_t> named;
  for (std::uint32_t rank = 0; rank < script.world_size; ++rank) {
    if (Mentions(worker, fmt::format("rank {}", rank))) named.insert(rank);
  }
  // While control was stuck, another rank may have left and closed its lanes before its daemon knew
  // that, so the verdict blames that rank. The job had failed elsewhere already, and nobody trained
  // any more.
  if (worker.ended_leaving() && outages_ > 0 && !named.empty() && Mentions(worker, script.name)) {
    return "";
  }
  if (!named.contains(script.culprit) || !Mentions(worker, script.name)) {
    return fmt::format("does not name both rank {} and its job: {}", script.culprit,
                       worker.Describe());
  }
  if (script.disagrees() && named.size() < 2) {
    return fmt::format("names only one side: {}", worker.Describe());
  }
  return "";
}

Coverage Cluster::Measure() const {
  using server::CoreCounter;
  Coverage coverage;
  coverage.dumps_taken = dumps_taken_;
  coverage.dump_records = dump_records_;
  coverage.dump_silences = dump_silences_;
  std::uint64_t attached = 0, cores = 0;
  for (const auto& daemon : rack_) {
    coverage.rounds += daemon->Count(CoreCounter::rounds);
    coverage.long_works += daemon->long_works();
    coverage.gradients_folded += daemon->Count(CoreCounter::gradients_folded);
    coverage.replies_deferred += daemon->Count(CoreCounter::replies_deferred);
    coverage.duplicates_staged += daemon->Count(CoreCounter::duplicates_staged);
    coverage.duplicates_applied += daemon->Count(CoreCounter::duplicates_applied);
    coverage.staged_discarded += daemon->Count(CoreCounter::staged_discarded);
    coverage.gradients_in_place += daemon->Count(CoreCounter::gradients_in_place);
    coverage.partials += daemon->Count(CoreCounter::partials);
    coverage.results += daemon->Count(CoreCounter::results);
    coverage.overtakes_across += daemon->Count(CoreCounter::peer_overtakes);
    if (daemon->is_aggregator()) {
      coverage.aggregated += daemon->Count(CoreCounter::partials);
    }
    coverage.replies_in_pass += daemon->Count(CoreCounter::replies_in_pass);
    coverage.decisions += daemon->Count(CoreCounter::decisions);
    coverage.rounds_skipped += daemon->Count(CoreCounter::rounds_skipped);
    coverage.seats_taken_over += daemon->CountOfControl("phub_ranks_restarted_total");
    attached += daemon->Count(CoreCounter::lanes_attached);
    cores += daemon->core_count();
  }
  for (const auto& saver : savers_) {
    coverage.snapshots_taken += saver->taken();
    coverage.snapshots_missed += saver->missed();
    coverage.snapshots_cancelled += saver->cancelled();
    coverage.loads_checked += saver->loads_checked();
    coverage.pages_listed += saver->pages_listed();
    coverage.version_pages += saver->version_pages();
  }
  std::uint64_t lanes = 0;
  for (const auto& job : jobs_) {
    coverage.jobs_failed += job->script.fate != Fate::kCompletes;
    (job->script.racks > 1 ? coverage.jobs_across_racks : coverage.jobs_beside) += 1;
  }
  ForEachSeat([&](const Job& job, const Seat& seat) {
    lanes += cores;
    for (const auto& process : seat.processes) {
      coverage.streams_broken += process->streams_broken();
      coverage.gradients_copied += process->gradients_copied();
      coverage.parameters_shared += process->parameters_shared();
      coverage.reduced_in_place += process->reduced_in_place();
      coverage.keys_resumed += process->keys_resumed();
      coverage.collective_rounds += process->collective_rounds();
      coverage.encoded_rounds += process->encoded_rounds();
      coverage.pooled_rounds += process->pooled_rounds();
      coverage.pooled_moves += process->pooled_moves();
      coverage.group_rounds += process->group_rounds();
      coverage.group_rounds_across += process->group_rounds_across();
      coverage.groups_removed += process->groups_removed();
      coverage.keys_removed += process->keys_removed();
      coverage.keys_resumed_back += process->keys_resumed_back();
      if (job.script.racks == 1) continue;
      coverage.streams_broken_across += process->streams_broken();
      coverage.keys_resumed_across += process->keys_resumed();
      coverage.keys_resumed_back_across += process->keys_resumed_back();
    }
  });
  for (const auto& peers : peer_networks_) coverage.envelopes_repeated += peers->repeated();
  coverage.racks_cut = racks_cut_at_ != 0;
  coverage.lanes_cut = lanes_cut_;
  coverage.several_planes = per_rack_ > 1;
  for (const auto& daemon : rack_) coverage.surveys += daemon->CountOfControl("phub_surveys_total");
  coverage.lanes_replaced = attached > lanes ? attached - lanes : 0;
  coverage.several_daemons = rack_.size() > 1;
  coverage.daemons_lost = daemon_died_at_ != 0;
  coverage.crashes = crashes_;
  coverage.control_outages = outages_;
  coverage.rounds_without_control = rounds_without_control_;
  return coverage;
}

std::string Cluster::Describe() const {
  const SimNetworkOptions& net = network_.options();
  std::string cores;
  for (const auto& daemon : rack_)
    cores += fmt::format("{}{},", daemon->core_count(), daemon->shares_memory() ? "s" : "");
  std::string text = fmt::format(
      "cores={} latency_us={}+{} bytes_per_s={} pipe={} split={} partial={} clog={} "
      "send_queue={} received_lent={} breaks_per_s={} until_ms={} doomed={}@{}ms topology={} "
      "cut={}-{}@{}ms per_rack={}",
      cores, net.latency_min / kMicrosecond, net.latency_jitter / kMicrosecond,
      net.bytes_per_second, net.pipe_bytes, net.split_read_chance, net.partial_write_chance,
      net.clog_chance, net.limits.send_queue, net.limits.received_lent, breaks_per_second_,
      faults_until_ / kMillisecond, doomed_, daemon_died_at_ / kMillisecond,
      topology_ + (topology_is_measured_ ? " (measured)" : ""), cut_[0], cut_[1],
      racks_cut_at_ / kMillisecond, per_rack_);
  for (const auto& job : jobs_) {
    text += "\n  " + sim::Describe(job->script);
    for (const Seat& seat : job->seats) {
      for (const auto& process : seat.processes) text += "\n    " + process->Describe();
    }
  }
  return text;
}

void Coverage::Add(const Coverage& other) {
#define PHUB_ADD(name) name += other.name;
  PHUB_SIM_BOTH_COVERAGE(PHUB_ADD)
  PHUB_SIM_ONE_RACK_COVERAGE(PHUB_ADD)
  PHUB_SIM_MANY_RACKS_COVERAGE(PHUB_ADD)
#undef PHUB_ADD
}

std::string Coverage::ToString() const {
  std::string text;
#define PHUB_PRINT(name) text += fmt::format("{}={} ", #name, name);
  PHUB_SIM_BOTH_COVERAGE(PHUB_PRINT)
  PHUB_SIM_ONE_RACK_COVERAGE(PHUB_PRINT)
  PHUB_SIM_MANY_RACKS_COVERAGE(PHUB_PRINT)
#undef PHUB_PRINT
  return text;
}

std::string Coverage::Missing(Layout layout) const {
  std::string text;
#define PHUB_CHECK_SEEN(name) \
  if (name == 0) text += #name " ";
  PHUB_SIM_BOTH_COVERAGE(PHUB_CHECK_SEEN)
  if (layout == Layout::kOneRack) {
    PHUB_SIM_ONE_RACK_COVERAGE(PHUB_CHECK_SEEN)
  } else {
    PHUB_SIM_MANY_RACKS_COVERAGE(PHUB_CHECK_SEEN)
  }
#undef PHUB_CHECK_SEEN
  return text;
}

}  // namespace phub::sim
