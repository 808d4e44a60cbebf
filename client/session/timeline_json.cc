// The file of a timeline: an array of events in Chrome's format.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>

#include "client/session/timeline.h"
#include "common/base/host_name.h"

namespace phub::client {
namespace {

// Above every number of a thread (at most 2^22), whose tracks have that number.
constexpr std::uint64_t kFirstTrack = 10'000'000;
constexpr std::size_t kPieceBytes = 1 << 16;

// Names have no control characters (IsName() in printable.h).
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// Chrome's unit is the microsecond.
std::string Microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

// Writes events to a sink in pieces, since a whole file may be large.
template <typename Sink>
class EventWriter {
 public:
  EventWriter(std::uint32_t rank, const Sink& sink) : rank_(rank), sink_(sink) {}

  void Metadata(const char* name, std::uint64_t track, std::string_view arguments) {
    Add("M", name, track, fmt::format("\"args\":{{{}}}", arguments));
  }
  void Span(std::string_view name, const char* category, std::uint64_t track, TimeNs begin,
            TimeNs end, std::string_view arguments) {
    Add("X", name, track,
        fmt::format("\"cat\":\"{}\",\"ts\":{},\"dur\":{},\"args\":{{{}}}", category,
                    Microseconds(begin), Microseconds(end - begin), arguments));
  }
  // An arrow from the span around `begin` to that around `end`.
  void Arrow(std::uint64_t id, std::uint64_t track, TimeNs begin, TimeNs end) {
    constexpr const char* kFields = "\"cat\":\"round\",\"id\":{},\"ts\":{}{}";
    Add("s", "round", track, fmt::format(kFields, id, Microseconds(begin), ""));
    Add("f", "round", track, fmt::format(kFields, id, Microseconds(end), ",\"bp\":\"e\""));
  }
  bool End() {  // false: the sink has refused a piece
    text_ += "\n]\n";
    Flush();
    return accepted_;
  }

 private:
  void Add(const char* phase, std::string_view name, std::uint64_t track, std::string_view more) {
    text_ += std::exchange(first_, false) ? "[\n" : ",\n";
    fmt::format_to(std::back_inserter(text_),
                   "{{\"ph\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},{}}}", phase, Quoted(name),
                   rank_, track, more);
    if (text_.size() >= kPieceBytes) Flush();
  }
  void Flush() {
    accepted_ = accepted_ && sink_(text_);
    text_.clear();
  }

  const std::uint32_t rank_;
  const Sink& sink_;
  std::string text_;
  bool first_ = true;
  bool accepted_ = true;
};

// Unique among the ranks of a job, and small enough for readers that use doubles.
std::uint64_t ArrowId(std::uint32_t rank, const Timeline::Record& record) {
  return (std::uint64_t{rank} & 0xffff) << 37 | std::uint64_t{record.track} << 23 |
         (record.round & 0x7fffff);
}

template <typename Events>
void WriteRound(Events& events, std::uint32_t rank, const Timeline::Record& round) {
  const std::uint64_t track = kFirstTrack + round.track;
  const std::string which = fmt::format("\"iteration\":{},\"round\":{},\"operation\":\"{}\"",
                                        round.iteration, round.round, round.operation);
  events.Span("push", "push", track, round.begin, round.sent,
              fmt::format("{},\"bytes\":{}", which, round.bytes_up));
  if (round.sending > round.begin)
    events.Span("queued", "push", track, round.begin, round.sending, "");
  events.Span(
      "pull", "pull", track, round.sent, round.end,
      fmt::format("{},\"bytes\":{},\"skipped\":{}", which, round.bytes_down, round.skipped));
  events.Arrow(ArrowId(rank, round), track, round.begin, (round.sent + round.end) / 2);
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
  EventWriter events(rank, sink);
  const auto name = [](std::string_view text) { return fmt::format("\"name\":{}", Quoted(text)); };
  events.Metadata("process_name", 0, name(fmt::format("rank {}", rank)));
  events.Metadata("phub_timeline", 0,
                  fmt::format("\"host\":{},\"process\":{},\"clock\":\"CLOCK_MONOTONIC\","
                              "\"realtime_minus_monotonic_us\":{},\"records_lost\":{},"
                              "\"keys_left_out\":{}",
                              Quoted(HostName()), getpid(), Microseconds(RealtimeMinusMonotonic()),
                              added_ - records_.size(), keys_left_out_));
  for (std::size_t i = 0; i < tracks_.size(); ++i)
    events.Metadata("thread_name", kFirstTrack + i, name(tracks_[i]));
  std::set<std::int32_t> threads;
  for (std::uint64_t i = added_ - records_.size(); i < added_; ++i) {
    const Record& record = records_[i % settings_.records_max];
    if (record.thread == 0) {
      WriteRound(events, rank, record);
      continue;
    }
    const auto thread = static_cast<std::uint64_t>(record.thread);
    if (threads.insert(record.thread).second)
      events.Metadata("thread_name", thread,
                      name(record.thread == getpid() ? "waits of the main thread"
                                                     : fmt::format("waits of thread {}", thread)));
    events.Span(fmt::format("wait {}", tracks_[record.track]), "wait", thread, record.begin,
                record.end, "");
  }
  return events.End();
}

}  // namespace phub::client
