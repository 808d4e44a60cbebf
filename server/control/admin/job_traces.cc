#include "server/control/admin/job_traces.h"

#include <algorithm>
#include <utility>

#include "common/base/group_keys.h"
#include "server/control/daemon_clock.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_run.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// What the round of a pooled key is.
void Describe(const Job& job, const PooledPart& pool, v1::PooledRound& described) {
  const std::uint64_t bytes = pool.round.elements * numeric::ElementBytes(pool.type);
  const std::uint32_t chunk_bytes = job.config.chunk_bytes;
  described.set_elements(pool.round.elements);
  described.set_chunks(static_cast<std::uint32_t>((bytes + chunk_bytes - 1) / chunk_bytes));
  described.set_type(static_cast<std::uint32_t>(pool.type));
  described.set_reduction(static_cast<std::uint32_t>(pool.round.reduction));
  described.set_sequence(pool.round.sequence & wire::kPoolSequenceMask);
  described.set_rounds_left(pool.round.sequence >> wire::kPoolSequenceBits);
}

}  // namespace

void JobTraces::TraceJob(const v1::TraceJobRequest& request, Answer<v1::TraceJobResponse> answer) {
  PHUB_ON_CONTROL();
  const absl::StatusOr<Job*> job = jobs_.FindJobToWorkOn(request.tenant(), request.job());
  if (!job.ok()) return answer(job.status(), {});
  const absl::StatusOr<Trace*> trace =
      request.trace() == 0 ? Begin(**job) : Find(**job, request.trace());
  if (!trace.ok()) return answer(trace.status(), {});
  v1::TraceJobResponse page;
  (*trace)->read_at = context_.clock.Now();
  Fill(**trace, page);
  if (request.end()) End(**trace);
  answer(absl::OkStatus(), std::move(page));
}

absl::StatusOr<JobTraces::Trace*> JobTraces::Begin(Job& job) {
  FreeStopped();
  std::size_t of_tenant = 0;
  for (const Trace& trace : traces_) {
    if (trace.job == &job && trace.stops.empty()) {
      return absl::ResourceExhaustedError(
          fmt::format("another client is tracing job {}; try again when it has ended", job.name()));
    }
    if (trace.job->account.tenant == job.account.tenant) ++of_tenant;
  }
  if (of_tenant >= kPerTenantMax) {
    return absl::ResourceExhaustedError(
        fmt::format("{} jobs of tenant {} are being traced, which is the limit; try again later",
                    of_tenant, job.account.tenant));
  }
  if (traces_.size() >= kTracesMax) {
    return absl::ResourceExhaustedError(fmt::format(
        "{} jobs are being traced, which is this daemon's limit; try again later", traces_.size()));
  }
  Trace& trace = traces_.emplace_back();
  trace.number = ++begun_;
  trace.job = &job;
  const std::size_t spans = std::max(kSpansPerCoreMin, kSpansMax / context_.cores.size());
  for (std::size_t core = 0; core < context_.cores.size(); ++core) {
    trace.cores.push_back(std::make_unique<RoundTrace>(spans));
    context_.cores[core].Send({.kind = Command::Kind::kTraceRounds,
                               .shard = job.shards[core].get(),
                               .trace = trace.cores.back().get()});
  }
  context_.log.Info("event=job_trace_begun tenant={} job=\"{}\" trace={}", job.account.tenant,
                    job.name(), trace.number);
  return &trace;
}

absl::StatusOr<JobTraces::Trace*> JobTraces::Find(const Job& job, std::uint64_t number) {
  const auto found = std::ranges::find_if(traces_, [&](const Trace& trace) {
    return trace.number == number && trace.job == &job && trace.stops.empty();
  });
  if (found != traces_.end()) return &*found;
  return absl::NotFoundError(
      fmt::format("job {} has no trace {}: it has ended, or no page of it was read for {}",
                  job.name(), number, FormatAge(kUnreadMax)));
}

// Control frees the memory when every core loop has stopped.
void JobTraces::End(Trace& trace) {
  if (!trace.stops.empty()) return;
  for (std::size_t core = 0; core < trace.cores.size(); ++core) {
    trace.stops.push_back(context_.cores[core].Send(
        {.kind = Command::Kind::kTraceRounds, .shard = trace.job->shards[core].get()}));
  }
  context_.log.Info("event=job_trace_ended tenant={} job=\"{}\" trace={}",
                    trace.job->account.tenant, trace.job->name(), trace.number);
}

void JobTraces::FreeStopped() {
  std::erase_if(traces_, [&](const Trace& trace) {
    return !trace.stops.empty() && context_.cores.Acknowledged(trace.stops);
  });
}

// One core loop after the other, beginning where the page before has ended.
void JobTraces::Fill(Trace& trace, v1::TraceJobResponse& page) {
  const Job& job = *trace.job;
  page.set_trace(trace.number);
  page.set_incarnation(FormatIncarnation(job.account.incarnation));
  *page.mutable_clock() = DescribeClock(context_);
  page.set_daemon(context_.options.rack_self);
  page.set_daemons(context_.options.daemons_in_rack());
  if (job.rack_run != nullptr) {
    page.set_rack(context_.options.rack_index);
    for (const std::string& rack : context_.options.racks) page.add_racks(rack);
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < trace.cores.size() && count < kSpansPerPage; ++i) {
    const std::size_t core = trace.next_core;
    TracedSpan span;
    while (count < kSpansPerPage && trace.cores[core]->spans.TryPop(span)) {
      AddSpan(trace, core, span, page);
      ++count;
    }
    if (count < kSpansPerPage) trace.next_core = (core + 1) % trace.cores.size();
  }
  page.set_more(count == kSpansPerPage);
  std::uint64_t dropped = 0;
  for (const auto& each : trace.cores) dropped += each->dropped.load(std::memory_order_relaxed);
  page.set_dropped(dropped);
  context_.turns.Add(count);
}

void JobTraces::AddSpan(Trace& trace, std::size_t core, const TracedSpan& span,
                        v1::TraceJobResponse& page) {
  v1::TracedSpan& added = *page.add_spans();
  added.set_work(static_cast<v1::TracedWork>(span.work));
  added.set_core(static_cast<std::uint32_t>(core));
  added.set_key(span.key.value);
  added.set_chunk(span.chunk.value);
  added.set_round(span.round);
  added.set_iteration(span.iteration);
  added.set_begin_ns(span.begin);
  added.set_duration_ns(std::max<DurationNs>(0, span.end - span.begin));
  added.set_operation(static_cast<std::uint32_t>(span.operation));
  added.set_skipped(span.skipped);
  added.set_rank(span.rank);
  if (wire::IsPooled(span.operation)) Describe(*trace.job, span.pool, *added.mutable_pooled());
  const auto known = trace.named.find(span.key.value);
  const bool of_group = span.key.value >= kGroupKeysFirst;
  if (known != trace.named.end() && !(of_group && known->second.expired())) return;
  const BatchRecord* const batch = FindBatchOf(*trace.job, span.key);
  if (batch == nullptr) return;  // an old span of a key that was removed
  trace.named[span.key.value] = batch->keys;
  v1::TracedKey& key = *page.add_keys();
  key.set_key(span.key.value);
  key.set_name(DescribeKey(*trace.job, span.key));
  key.set_chunks(batch->own_chunks[span.key.value - batch->first_key]);
}

void JobTraces::Check(TimeNs now) {
  PHUB_ON_CONTROL();
  for (Trace& trace : traces_) {
    if (now >= trace.read_at + kUnreadMax) End(trace);
  }
  FreeStopped();
}

TimeNs JobTraces::NextTimer() const {
  PHUB_ON_CONTROL();
  TimeNs next = kNever;
  for (const Trace& trace : traces_) {
    if (trace.stops.empty()) next = std::min(next, trace.read_at + kUnreadMax);
  }
  return next;
}

void JobTraces::OnOver(Job& job, const absl::Status& /*why*/) {
  PHUB_ON_CONTROL();
  for (Trace& trace : traces_) {
    if (trace.job == &job) End(trace);
  }
}

void JobTraces::OnKeysRemoved(Job& job) {
  PHUB_ON_CONTROL();
  for (Trace& trace : traces_) {
    if (trace.job != &job) continue;
    std::erase_if(trace.named, [&](const auto& each) {
      return each.first < kGroupKeysFirst && each.first >= job.keys.size();
    });
  }
}

// Its core loops have ended the job, and so they have executed the commands before.
void JobTraces::OnReleased(Job& job) {
  PHUB_ON_CONTROL();
  std::erase_if(traces_, [&](const Trace& trace) { return trace.job == &job; });
}

}  // namespace phub::server
