#include "client/cli/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include "client/session/trace_events.h"
#include "common/base/element_type.h"
#include "common/base/group_keys.h"
#include "common/base/printable.h"

namespace phub::client::cli {
namespace {

// Above the ranks, whose timelines have their numbers as processes.
constexpr std::uint64_t kFirstDaemon = 1'000'000;
constexpr std::uint64_t kDaemonsPerRack = 1000;
constexpr std::uint64_t kFirstCoreTrack = 1;
// Above all numbers of keys.
constexpr std::uint32_t kFirstRenumbered = 2 * kGroupKeysFirst;
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
  constexpr const char* kTexts[] = {"reduce", "assign", "load",
                                    "move",   "pooled", "pooled broadcast"};
  return operation < std::size(kTexts) ? kTexts[operation] : "unknown";
}

// Rounds of reductions count as iterations, as in the daemon.
bool IsIteration(const v1::TracedSpan& span) {
  return span.operation() == 0 || span.operation() == 3;
}

std::string PoolText(const v1::PooledRound& pooled) {
  const std::uint32_t type = std::min<std::uint32_t>(pooled.type(), UINT8_MAX);
  const bool is_known = numeric::IsElementType(static_cast<std::uint8_t>(type));
  return fmt::format(
      "\"pool_operation\":{},\"rounds_left\":{},\"elements\":{},\"type\":\"{}\"", pooled.sequence(),
      pooled.rounds_left(), pooled.elements(),
      is_known ? numeric::ToString(static_cast<numeric::ElementType>(type)) : "unknown");
}

std::string NameArgument(std::string_view name) {
  return fmt::format("\"name\":{}", QuotedForTrace(name));
}

}  // namespace

// One key's round, of all its chunks together.
struct TraceFile::Round {
  v1::PooledRound pooled;
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
    Key& known = keys_[NumberOf(key)];
    known.name = Printable(key.name());
    known.chunks = key.chunks();
  }
  for (const v1::TracedSpan& read : page.spans()) {
    v1::TracedSpan span = read;
    if (const auto other = numbers_.find(span.key()); other != numbers_.end())
      span.set_key(other->second);
    if (span.has_pooled() || IsIteration(span)) Count(span);
    if (!full()) spans_.push_back(std::move(span));
  }
  dropped_ = std::max<std::uint64_t>(dropped_, page.dropped());
}

// A key of a group may have the number of one that was removed. It has a track of its own.
std::uint32_t TraceFile::NumberOf(const v1::TracedKey& key) {
  const auto renumbered = numbers_.find(key.key());
  const std::uint32_t number = renumbered != numbers_.end() ? renumbered->second : key.key();
  const auto known = keys_.find(number);
  if (known == keys_.end() || known->second.name == Printable(key.name())) return number;
  const auto fresh = static_cast<std::uint32_t>(kFirstRenumbered + numbers_changed_++);
  numbers_[key.key()] = fresh;
  return fresh;
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
  if (span.has_pooled()) {
    if (gathered) return;
    const std::uint64_t rounds = ++pooled_[{span.key(), span.core(), span.chunk()}];
    pooled_rounds_ = std::max(pooled_rounds_, rounds);
    return;
  }
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

TraceFile::RoundsOfKeys TraceFile::FindRounds() const {
  RoundsOfKeys rounds;
  for (const v1::TracedSpan& span : spans_) {
    if (span.has_pooled()) continue;
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
  AddPooledRounds(rounds);
  return rounds;
}

// One chunk's round of a pooled key.
struct TraceFile::Part {
  const v1::TracedSpan* gathered = nullptr;
  const v1::TracedSpan* replied = nullptr;
  std::tuple<std::uint32_t, std::uint32_t> Chunk() const {
    return {gathered->core(), gathered->chunk()};
  }
  auto What() const {
    const v1::PooledRound& pooled = gathered->pooled();
    return std::tuple(gathered->operation(), pooled.elements(), pooled.type(), pooled.reduction(),
                      pooled.sequence(), pooled.rounds_left());
  }
};

void TraceFile::AddPooledRounds(RoundsOfKeys& rounds) const {
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t>, Part> found;
  for (const v1::TracedSpan& span : spans_) {
    if (!span.has_pooled()) continue;
    Part& part = found[{span.key(), span.core(), span.chunk(), span.round()}];
    if (span.work() == v1::TRACED_WORK_GATHER) part.gathered = &span;
    if (span.work() == v1::TRACED_WORK_REPLY) part.replied = &span;
  }
  std::map<std::uint32_t, std::vector<Part>> of_keys;
  for (const auto& [place, part] : found) {
    if (part.gathered != nullptr && part.replied != nullptr)
      of_keys[std::get<0>(place)].push_back(part);
  }
  for (auto& [key, parts] : of_keys) {
    std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.gathered->begin_ns(); });
    for (auto first = parts.begin(); first != parts.end();) {
      Round round;
      std::uint64_t number = 0;
      std::set<std::tuple<std::uint32_t, std::uint32_t>> chunks;
      auto each = first;
      for (; each != parts.end() && chunks.size() < first->gathered->pooled().chunks() &&
             each->What() == first->What() && chunks.insert(each->Chunk()).second;
           ++each) {
        const v1::TracedSpan& gathered = *each->gathered;
        round.first_gradient = std::min(round.first_gradient, TimeNs{gathered.begin_ns()});
        if (EndOf(gathered) >= round.last_gradient) round.last_rank = gathered.rank();
        round.last_gradient = std::max(round.last_gradient, EndOf(gathered));
        round.end = std::max(round.end, EndOf(*each->replied));
        // The first chunk, which every round covers, has the key's number.
        number = std::max(number, gathered.round());
        round.iteration = std::max(round.iteration, gathered.iteration());
      }
      round.operation = first->gathered->operation();
      round.pooled = first->gathered->pooled();
      const auto count = static_cast<std::uint32_t>(chunks.size());
      round.progress = {count, count};
      // Other daemons of the rack have the other chunks.
      const bool whole = count == round.pooled.chunks() || first_.daemons() > 1;
      first = std::max(each, std::next(first));
      if (whole) rounds.insert_or_assign({key, number}, std::move(round));
    }
  }
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
    events.Span(
        fmt::format("{} {}", WorkText(span), NameOf(span.key())), WorkText(span), TrackOf(span),
        span.begin_ns(), EndOf(span),
        fmt::format("\"iteration\":{},\"round\":{},\"chunk\":{},\"operation\":\"{}\","
                    "\"skipped\":{}{}{}",
                    span.iteration(), span.round(), span.chunk(), OperationText(span.operation()),
                    span.skipped(), span.has_pooled() ? "," : "",
                    span.has_pooled() ? PoolText(span.pooled()) : ""));
    const auto found = gathered.find(chunk);
    if (found == gathered.end() || found->second > EndOf(span)) continue;
    events.Arrow("chunk", "chunk", arrow++, {kFirstKeyTrack + span.key(), found->second},
                 {TrackOf(span), std::max(found->second, TimeNs{span.begin_ns()})});
    gathered.erase(found);
  }
}

template <typename Events>
void TraceFile::WriteKeys(Events& events) const {
  const RoundsOfKeys rounds = FindRounds();
  for (auto each = rounds.begin(); each != rounds.end(); ++each) {
    const auto& [place, round] = *each;
    // A fast rank may push again before the clock was read for the end of this round.
    TimeNs end = round.end;
    const auto next = std::next(each);
    if (next != rounds.end() && next->first.first == place.first)
      end = std::max(round.last_gradient, std::min(end, next->second.first_gradient));
    const std::uint64_t track = kFirstKeyTrack + place.first;
    std::string which = fmt::format("\"iteration\":{},\"round\":{},\"operation\":\"{}\"",
                                    round.iteration, place.second, OperationText(round.operation));
    if (round.pooled.chunks() > 0) which += "," + PoolText(round.pooled);
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
