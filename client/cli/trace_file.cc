#include "client/cli/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "client/session/trace_events.h"
#include "common/base/printable.h"

namespace phub::client::cli {
namespace {

// Above the ranks, whose timelines have their numbers as processes.
constexpr std::uint64_t kFirstDaemon = 1'000'000;
constexpr std::uint64_t kDaemonsPerRack = 1000;
constexpr std::uint64_t kFirstCoreTrack = 1;
constexpr std::uint32_t kArrowBits = 22;  // for arrows; a daemon has its number above them

std::uint64_t ProcessOf(const v1::TraceJobResponse& page) {
  return kFirstDaemon + page.rack() * kDaemonsPerRack + page.daemon();
}

std::uint64_t TrackOf(const v1::TracedSpan& span) { return kFirstCoreTrack + span.core(); }
TimeNs EndOf(const v1::TracedSpan& span) { return span.begin_ns() + span.duration_ns(); }

const char* WorkText(const v1::TracedSpan& span) {
  switch (span.work()) {
    case v1::TRACED_WORK_SUM: return "sum";
    case v1::TRACED_WORK_UPDATE: return "update";
    case v1::TRACED_WORK_REPLY: return "reply";
    default: return "work";
  }
}

const char* OperationText(std::uint32_t operation) {
  constexpr const char* kTexts[] = {"reduce", "assign", "load", "move"};
  return operation < std::size(kTexts) ? kTexts[operation] : "unknown";
}

// Rounds of reductions count as iterations, as in the daemon.
bool IsIteration(const v1::TracedSpan& span) {
  return span.operation() == 0 || span.operation() == 3;
}

std::string NameArgument(std::string_view name) {
  return fmt::format("\"name\":{}", QuotedForTrace(name));
}

}  // namespace

// One key's round, of all its chunks together.
struct TraceFile::Round {
  TimeNs first_gradient = INT64_MAX;
  TimeNs last_gradient = 0;
  TimeNs end = 0;
  std::uint64_t iteration = 0;
  std::uint32_t operation = 0;
  std::uint32_t last_rank = 0;
  Progress progress;
  bool skipped = false;
};

TraceFile::TraceFile(const std::string& job, const v1::TraceJobResponse& first,
                     std::int64_t unix_ns)
    : job_(job),
      first_([&] {
        v1::TraceJobResponse copy = first;
        copy.clear_spans();
        copy.clear_keys();
        return copy;
      }()),
      realtime_minus_monotonic_ns_(unix_ns - first.clock().now_ns()) {}

void TraceFile::Add(const v1::TraceJobResponse& page) {
  for (const v1::TracedKey& key : page.keys()) {
    Key& known = keys_[key.key()];
    known.name = Printable(key.name());
    known.chunks = key.chunks();
  }
  for (const v1::TracedSpan& span : page.spans()) {
    if (!full()) spans_.push_back(span);
    if (IsIteration(span)) Count(span);
  }
  dropped_ = std::max<std::uint64_t>(dropped_, page.dropped());
}

// The core loops begin to trace one after the other, and are read one after the other. So the first
// and last rounds of a trace may lack the chunks of some core loops.
bool TraceFile::IsComplete(std::uint32_t key, const Progress& progress) const {
  const auto known = keys_.find(key);
  return known != keys_.end() && progress.gathered == known->second.chunks &&
         progress.replied == known->second.chunks;
}

void TraceFile::Count(const v1::TracedSpan& span) {
  const bool gathered = span.work() == v1::TRACED_WORK_GATHER;
  if (!gathered && span.work() != v1::TRACED_WORK_REPLY) return;
  const auto [progress, added] = unfinished_.try_emplace({span.key(), span.round()});
  ++(gathered ? progress->second.gathered : progress->second.replied);
  if (!IsComplete(span.key(), progress->second)) return;
  unfinished_.erase(progress);
  iterations_ = std::max(iterations_, ++keys_[span.key()].iterations);
}

std::string TraceFile::NameOf(std::uint32_t key) const {
  const auto found = keys_.find(key);
  return found != keys_.end() ? found->second.name : fmt::format("key {}", key);
}

std::map<std::pair<std::uint32_t, std::uint64_t>, TraceFile::Round> TraceFile::RoundsOfKeys()
    const {
  std::map<std::pair<std::uint32_t, std::uint64_t>, Round> rounds;
  for (const v1::TracedSpan& span : spans_) {
    Round& round = rounds[{span.key(), span.round()}];
    switch (span.work()) {
      case v1::TRACED_WORK_GATHER:
        ++round.progress.gathered;
        round.first_gradient = std::min(round.first_gradient, TimeNs{span.begin_ns()});
        if (EndOf(span) >= round.last_gradient) round.last_rank = span.rank();
        round.last_gradient = std::max(round.last_gradient, EndOf(span));
        round.iteration = span.iteration();
        round.operation = span.operation();
        break;
      case v1::TRACED_WORK_UPDATE: round.skipped |= span.skipped(); break;
      case v1::TRACED_WORK_REPLY:
        ++round.progress.replied;
        round.end = std::max(round.end, EndOf(span));
        break;
      default: break;
    }
  }
  std::erase_if(rounds, [this](const auto& each) {
    return !IsComplete(each.first.first, each.second.progress);
  });
  return rounds;
}

template <typename Events>
void TraceFile::WriteNames(Events& events) const {
  std::string place;
  if (first_.racks_size() > 0) place += fmt::format(", rack {}", first_.rack());
  if (first_.daemons() > 1) place += fmt::format(", daemon {}", first_.daemon());
  const std::string host = Printable(first_.clock().host());
  events.Metadata("process_name", 0, NameArgument(fmt::format("phubd on {}{}", host, place)));
  events.Metadata(
      "phub_timeline", 0,
      fmt::format(
          "\"host\":{},\"clock\":\"CLOCK_MONOTONIC\",\"realtime_minus_monotonic_us\":{},"
          "\"daemon_started_ns\":{},\"incarnation\":{},\"spans_dropped\":{},\"whole_job\":{}",
          QuotedForTrace(host), TraceMicroseconds(realtime_minus_monotonic_ns_),
          first_.clock().started_ns(), QuotedForTrace(Printable(first_.incarnation())), dropped_,
          first_.daemons() <= 1 && first_.racks_size() == 0));
  std::set<std::uint32_t> cores;
  std::set<std::uint32_t> keys;
  for (const v1::TracedSpan& span : spans_) {
    cores.insert(span.core());
    keys.insert(span.key());
  }
  for (const std::uint32_t core : cores) {
    events.Metadata("thread_name", kFirstCoreTrack + core,
                    NameArgument(fmt::format("core loop {}", core)));
  }
  for (const std::uint32_t key : keys) {
    events.Metadata("thread_name", kFirstKeyTrack + key,
                    NameArgument(fmt::format("{} (job {})", NameOf(key), job_)));
  }
}

// The work of the core loops, and an arrow to each chunk's sum or update from its last gradient.
template <typename Events>
void TraceFile::WriteCores(Events& events) const {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, TimeNs> gathered;
  std::uint64_t arrow = (ProcessOf(first_) - kFirstDaemon) << kArrowBits;
  for (const v1::TracedSpan& span : spans_) {
    const std::tuple chunk(span.core(), span.chunk(), span.round());
    if (span.work() == v1::TRACED_WORK_GATHER) {
      gathered[chunk] = EndOf(span);
      continue;
    }
    events.Span(fmt::format("{} {}", WorkText(span), NameOf(span.key())), WorkText(span),
                TrackOf(span), span.begin_ns(), EndOf(span),
                fmt::format("\"iteration\":{},\"round\":{},\"chunk\":{},\"operation\":\"{}\","
                            "\"skipped\":{}",
                            span.iteration(), span.round(), span.chunk(),
                            OperationText(span.operation()), span.skipped()));
    const auto found = gathered.find(chunk);
    if (found == gathered.end() || found->second > EndOf(span)) continue;
    events.Arrow("chunk", "chunk", arrow++, {kFirstKeyTrack + span.key(), found->second},
                 {TrackOf(span), std::max(found->second, TimeNs{span.begin_ns()})});
    gathered.erase(found);
  }
}

template <typename Events>
void TraceFile::WriteKeys(Events& events) const {
  const auto rounds = RoundsOfKeys();
  for (auto each = rounds.begin(); each != rounds.end(); ++each) {
    const auto& [place, round] = *each;
    // A fast rank may push again before the clock was read for the end of this round.
    TimeNs end = round.end;
    const auto next = std::next(each);
    if (next != rounds.end() && next->first.first == place.first)
      end = std::max(round.last_gradient, std::min(end, next->second.first_gradient));
    const std::uint64_t track = kFirstKeyTrack + place.first;
    const std::string which =
        fmt::format("\"iteration\":{},\"round\":{},\"operation\":\"{}\"", round.iteration,
                    place.second, OperationText(round.operation));
    events.Span("round", "round", track, round.first_gradient, end,
                fmt::format("{},\"chunks\":{}", which, round.progress.gathered));
    events.Span("gradients", "gradients", track, round.first_gradient, round.last_gradient,
                fmt::format("{},\"last_rank\":{}", which, round.last_rank));
    events.Span("update", "update", track, round.last_gradient, end,
                fmt::format("{},\"skipped\":{}", which, round.skipped));
  }
}

bool TraceFile::Write(const Sink& sink) const {
  TraceEventWriter events(ProcessOf(first_), sink);
  WriteNames(events);
  WriteCores(events);
  WriteKeys(events);
  return events.End();
}

}  // namespace phub::client::cli
