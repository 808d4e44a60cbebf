#include "server/control/lanes/sum_streams.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/aggregation/endpoint_text.h"
#include "common/base/check.h"
#include "common/base/status_text.h"
#include "server/control/lanes/aggregator_shares.h"
#include "server/control/on_control.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

using aggregation::LeaseNumber;
using State = JobSums::State;

constexpr DurationNs kRetryAfter = 5 * kSecond;
// Positions are open, and no sum has arrived for that long: datagrams are probably dropped on the
// way. Over tcp a rank that has stopped is waited for in the same way.
constexpr DurationNs kSilenceMax = 5 * kSecond;
constexpr DurationNs kRetryAfterSilence = 60 * kSecond;
constexpr DurationNs kLookInterval = kSecond;

bool IsSame(const phub_endpoint& a, const phub_endpoint& b) {
  return phub_endpoint_equals(&a, &b) != 0;
}

// Where workers of an open stream send; with several aggregators also the entry of sum_aggregator.
std::string AggregatorOf(const JobSums& sums) {
  const std::string address = aggregation::TextOf(sums.lease.aggregator);
  if (sums.aggregator_name.empty()) return address;
  return fmt::format("{} ({})", address, sums.aggregator_name);
}

}  // namespace

std::string SumStreams::WhyNever(const Job& job) const {
  const JobSettings& settings = job.settings;
  if (network_ == nullptr) return "the setting sum_aggregator is empty";
  if (settings.world_size > PHUB_WORKERS_MAX)
    return fmt::format("an aggregator sums at most {} ranks", PHUB_WORKERS_MAX);
  if (settings.apply_iteration) return "the job has apply=iteration";
  if (settings.restart) return "the job has restart=true";
  // An administrator who encrypts lanes does not expect gradients in the clear.
  if (context_.options.tls_lanes) return "data_tls is on, and datagrams are not encrypted";
  if (StreamGeometry(settings.chunk_bytes, settings.sum_block).blocks == 0)
    return fmt::format("chunks of {} have more than {} blocks of {} elements",
                       FormatBytes(settings.chunk_bytes), aggregation::kChunkBlocksMax,
                       settings.sum_block);
  return {};
}

std::vector<std::uint32_t> SumStreams::CountStreams() const {
  std::vector<std::uint32_t> streams(network_->aggregator_count());
  for (const auto& job : jobs_.jobs()) {
    for (const JobSums& sums : job->sums)
      if (sums.state != State::kOff) ++streams[sums.aggregator.value];
  }
  return streams;
}

void SumStreams::Begin(Job& job) const {
  PHUB_ON_CONTROL();
  if (job.settings.sum_block == 0) return;
  const std::string never = WhyNever(job);
  const std::size_t cores = job.shards.size();
  std::vector<AggregatorIndex> aggregators;
  if (never.empty())
    aggregators = ShareAggregators(CountStreams(), cores, context_.options.rack_self * cores);
  for (const std::unique_ptr<JobShard>& shard : job.shards) {
    JobSums& sums = job.sums.emplace_back();
    sums.reason = never;
    if (!never.empty()) continue;
    sums.state = State::kClosed;
    sums.aggregator = aggregators[job.sums.size() - 1];
    if (network_->aggregator_count() > 1) sums.aggregator_name = network_->NameOf(sums.aggregator);
    sums.workers.resize(job.settings.world_size);
    const std::uint32_t block = job.settings.sum_block;
    shard->sums = std::make_unique<ShardSums>(StreamGeometry(job.settings.chunk_bytes, block),
                                              block, job.settings.world_size);
  }
}

void SumStreams::NoteEndpoint(Job& job, Rank rank, CoreIndex core,
                              const std::string& endpoint) const {
  if (job.sums.empty() || job.sums[core.value].state == State::kOff) return;
  std::optional<phub_endpoint>& worker = job.sums[core.value].workers[rank.value];
  const auto parsed = aggregation::ParseEndpoint(endpoint);
  worker = parsed.ok() ? std::optional(*parsed) : std::nullopt;
}

std::string SumStreams::WhyNotYet(const Job& job, CoreIndex core) const {
  for (std::uint32_t rank = 0; rank < job.members.size(); ++rank) {
    const LanePlace& place = job.members[rank].lanes[core.value];
    if (place.connection == nullptr) return fmt::format("rank {} has no lane yet", rank);
    if (!std::string_view(place.description).starts_with("tcp "))
      return fmt::format("the lane of rank {} is {}", rank, place.description);
    if (place.connection->version() < wire::kStreamVersion)
      return fmt::format("the lane of rank {} has version {}; it needs {}", rank,
                         place.connection->version(), wire::kStreamVersion);
    if (!job.sums[core.value].workers[rank])
      return fmt::format("rank {} has no socket for datagrams", rank);
  }
  return {};
}

void SumStreams::Ask(Job& job, CoreIndex core) {
  JobSums& sums = job.sums[core.value];
  ShardSums& shard = *job.shards[core.value]->sums;
  if (sums.here.port == 0) {
    auto port = network_->MakePort(sums.aggregator, core, shard.geometry, shard.stream, sums.here);
    if (!port.ok()) {
      sums.reason = std::string(MessageOf(port.status()));
      sums.retry_at = context_.clock.Now() + kRetryAfter;
      return;
    }
    shard.port = *std::move(port);
  }
  SumLeaseRequest request{.tenant = job.account.tenant,
                          .job = job.name(),
                          .slot_count = shard.geometry.positions * shard.geometry.blocks,
                          .count_max = shard.block,
                          .core_loop = sums.here,
                          .workers = {}};
  for (const auto& worker : sums.workers) request.workers.push_back(*worker);
  sums.state = State::kAsked;
  sums.reason = fmt::format("waiting for the answer of phub-aggregator at {}",
                            network_->NameOf(sums.aggregator));
  network_->Grant(sums.aggregator, std::move(request), job.account.incarnation, core);
}

void SumStreams::HandleGranted(AggregatorIndex aggregator, Incarnation incarnation, CoreIndex core,
                               const absl::StatusOr<phub_lease>& lease) {
  PHUB_ON_CONTROL();
  Job* const job = jobs_.FindIncarnation(incarnation);
  const bool wanted = job != nullptr && job->running() && !job->sums.empty() &&
                      job->sums[core.value].state == State::kAsked;
  if (!wanted) {
    if (lease.ok()) network_->End(aggregator, LeaseNumber{lease->number});
    return;
  }
  JobSums& sums = job->sums[core.value];
  if (!lease.ok()) {
    sums.state = State::kClosed;
    sums.reason = std::string(MessageOf(lease.status()));
    sums.retry_at = context_.clock.Now() + kRetryAfter;
    return;
  }
  sums.state = State::kOpen;
  sums.lease = *lease;
  sums.opened = context_.cores[core.value].Send({.kind = Command::Kind::kOpenStream,
                                                 .shard = job->shards[core.value].get(),
                                                 .lease = &sums.lease});
  context_.log.Info("event=sum_stream_opened tenant={} job=\"{}\" core={} aggregator={} lease={}",
                    job->account.tenant, job->name(), core.value,
                    aggregation::TextOf(lease->aggregator), lease->number);
}

void SumStreams::Close(Job& job, CoreIndex core, std::string reason, DurationNs pause) {
  JobSums& sums = job.sums[core.value];
  context_.log.Info(
      "event=sum_stream_closed tenant={} job=\"{}\" core={} aggregator={} lease={} reason=\"{}\"",
      job.account.tenant, job.name(), core.value, aggregation::TextOf(sums.lease.aggregator),
      sums.lease.number, reason);
  context_.cores[core.value].Send(
      {.kind = Command::Kind::kCloseStream, .shard = job.shards[core.value].get()});
  sums.state = State::kClosed;
  sums.reason = std::move(reason);
  sums.retry_at = context_.clock.Now() + pause;
}

void SumStreams::HandleLost(AggregatorIndex aggregator, LeaseNumber number,
                            const absl::Status& why) {
  PHUB_ON_CONTROL();
  for (const auto& job : jobs_.jobs()) {
    for (std::size_t core = 0; core < job->sums.size() && job->running(); ++core) {
      const JobSums& sums = job->sums[core];
      if (sums.state != State::kOpen || sums.aggregator != aggregator) continue;
      if (sums.lease.number != number.value) continue;
      return Close(*job, CoreAt(core), std::string(MessageOf(why)), kRetryAfter);
    }
  }
}

// Empty: the stream may stay open.
std::string SumStreams::WhyClosed(const Job& job, CoreIndex core, TimeNs now) const {
  const JobSums& sums = job.sums[core.value];
  for (std::uint32_t rank = 0; rank < sums.workers.size(); ++rank) {
    if (!sums.workers[rank] || !IsSame(*sums.workers[rank], sums.lease.workers[rank]))
      return fmt::format("rank {} has another socket for datagrams", rank);
  }
  const auto since = static_cast<TimeNs>(job.shards[core.value]->sums->silent_since.Get());
  if (since == 0 || now - since < kSilenceMax) return {};
  return fmt::format("no sum has arrived from {} for {} s; check that UDP reaches it",
                     AggregatorOf(sums), kSilenceMax / kSecond);
}

void SumStreams::AdvanceCore(Job& job, CoreIndex core, TimeNs now) {
  JobSums& sums = job.sums[core.value];
  if (sums.state == State::kOpen) {
    std::string why = WhyClosed(job, core, now);
    if (why.empty()) return;
    network_->End(sums.aggregator, LeaseNumber{sums.lease.number});
    const bool silent = why.starts_with("no sum");
    return Close(job, core, std::move(why), silent ? kRetryAfterSilence : 0);
  }
  if (sums.state != State::kClosed || now < sums.retry_at) return;
  if (!context_.cores[core.value].Acknowledged(sums.opened)) return;  // it still reads the lease
  std::string why = WhyNotYet(job, core);
  if (!why.empty()) {
    sums.reason = std::move(why);
    return;
  }
  Ask(job, core);
}

void SumStreams::Advance(Job& job, TimeNs now) {
  for (std::size_t core = 0; core < job.sums.size(); ++core) {
    JobSums& sums = job.sums[core];
    if (job.running()) {
      AdvanceCore(job, CoreAt(core), now);
    } else if (std::exchange(sums.state, State::kOff) == State::kOpen) {
      network_->End(sums.aggregator, LeaseNumber{sums.lease.number});
      sums.reason = "the job has ended";
    }
  }
}

TimeNs SumStreams::NextTimer(const Job& job, TimeNs now) const {
  TimeNs next = kNever;
  for (const JobSums& sums : job.sums) {
    if (sums.state == State::kOpen) next = std::min(next, now + kLookInterval);
    if (sums.state == State::kClosed && sums.retry_at > now) next = std::min(next, sums.retry_at);
  }
  return next;
}

bool SumStreams::MayStream(const Job& job) {
  return std::ranges::any_of(job.sums,
                             [](const JobSums& sums) { return sums.state != State::kOff; });
}

std::vector<std::string> SumStreams::WaysOf(const Job& job) {
  std::vector<std::string> ways;
  for (const JobSums& sums : job.sums) {
    ways.push_back(sums.state == State::kOpen ? "aggregator " + AggregatorOf(sums)
                                              : "tcp: " + sums.reason);
  }
  return ways;
}

}  // namespace phub::server
