// The file of a timeline: an array of events in Chrome's format.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "client/session/timeline.h"
#include "client/session/trace_events.h"
#include "common/base/host_name.h"
#include "common/base/printable.h"

namespace phub::client {
namespace {

// Unique among the ranks of a job, and small enough for readers that use doubles.
std::uint64_t ArrowId(std::uint32_t rank, const Timeline::Record& record) {
  return (std::uint64_t{rank} & 0xffff) << 37 | std::uint64_t{record.track} << 23 |
         (record.round & 0x7fffff);
}

template <typename Events>
void WriteRound(Events& events, std::uint32_t rank, const Timeline::Record& round) {
  const std::uint64_t track = kFirstKeyTrack + round.track;
  std::string which = fmt::format("\"iteration\":{},\"round\":{},\"operation\":\"{}\"",
                                  round.iteration, round.round, round.operation);
  if (round.pooled) which += fmt::format(",\"pool_operation\":{}", round.pool_operation);
  events.Span("push", "push", track, round.begin, round.sent,
              fmt::format("{},\"bytes\":{}", which, round.bytes_up));
  if (round.sending > round.begin)
    events.Span("queued", "push", track, round.begin, round.sending, "");
  events.Span(
      "pull", "pull", track, round.sent, round.end,
      fmt::format("{},\"bytes\":{},\"skipped\":{}", which, round.bytes_down, round.skipped));
  events.Arrow("round", "round", ArrowId(rank, round), {track, round.begin},
               {track, (round.sent + round.end) / 2});
}

std::int64_t RealtimeMinusMonotonic() {
  const auto real = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(real).count() - SystemClock().Now();
}

}  // namespace

std::string Timeline::Json() const {
  const std::lock_guard lock(mutex_);
  std::string json;
  WriteJson([&json](std::string_view text) {
    json += text;
    return true;
  });
  return json;
}

bool Timeline::WriteJson(const Sink& sink) const {
  const std::uint32_t rank = rank_.value_or(0);
  TraceEventWriter events(rank, sink);
  const auto name = [](std::string_view text) {
    return fmt::format("\"name\":{}", QuotedForTrace(text));
  };
  events.Metadata("process_name", 0, name(fmt::format("rank {}", rank)));
  std::string daemons;
  for (const MeasuredClock& clock : clocks_) {
    daemons += fmt::format(
        "{}{{\"host\":{},\"started_ns\":{},\"clock_offset_us\":{},\"clock_error_us\":{}}}",
        daemons.empty() ? "" : ",", QuotedForTrace(Printable(clock.host)), clock.started_ns,
        TraceMicroseconds(clock.offset), TraceMicroseconds(clock.error));
  }
  events.Metadata(
      "phub_timeline", 0,
      fmt::format("\"host\":{},\"process\":{},\"clock\":\"CLOCK_MONOTONIC\","
                  "\"realtime_minus_monotonic_us\":{},\"records_lost\":{},\"keys_left_out\":{},"
                  "\"daemons\":[{}]",
                  QuotedForTrace(HostName()), getpid(), TraceMicroseconds(RealtimeMinusMonotonic()),
                  added_ - records_.size(), keys_left_out_, daemons));
  for (std::size_t i = 0; i < tracks_.size(); ++i)
    events.Metadata("thread_name", kFirstKeyTrack + i, name(tracks_[i]));
  std::set<std::int32_t> threads;
  for (std::uint64_t i = added_ - records_.size(); i < added_; ++i) {
    const Record& record = records_[i % settings_.records_max];
    if (record.thread == 0) {
      WriteRound(events, rank, record);
      continue;
    }
    const auto thread = static_cast<std::uint64_t>(record.thread);
    if (threads.insert(record.thread).second)
      events.Metadata(
          "thread_name", thread,
          name(record.thread == getpid() ? "main thread" : fmt::format("thread {}", thread)));
    if (record.computation) {
      events.Span(computations_[record.track], "compute", thread, record.begin, record.end,
                  fmt::format("\"iteration\":{}", record.iteration));
      continue;
    }
    events.Span(fmt::format("wait {}", tracks_[record.track]), "wait", thread, record.begin,
                record.end, "");
  }
  return events.End();
}

}  // namespace phub::client
