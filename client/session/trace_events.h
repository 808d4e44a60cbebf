// Writes events in Chrome's trace format: the timelines of ranks (timeline.h) and the traces of
// daemons (client/cli/trace_file.h). One thread.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"

namespace phub::client {

// The track of the first key, above every number of a thread (at most 2^22), whose tracks have that
// number.
inline constexpr std::uint64_t kFirstKeyTrack = 10'000'000;

// Names have no control characters (IsName() in printable.h).
inline std::string QuotedForTrace(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

// Chrome's unit is the microsecond.
inline std::string TraceMicroseconds(std::int64_t ns) {
  const std::uint64_t size =
      ns < 0 ? -static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  return fmt::format("{}{}.{:03}", ns < 0 ? "-" : "", size / 1000, size % 1000);
}

// Writes events to a sink in pieces, since a whole file may be large.
template <typename Sink>
class TraceEventWriter {
 public:
  TraceEventWriter(std::uint64_t process, const Sink& sink) : process_(process), sink_(sink) {}

  void Metadata(const char* name, std::uint64_t track, std::string_view arguments) {
    Add("M", name, track, fmt::format("\"args\":{{{}}}", arguments));
  }
  void Span(std::string_view name, const char* category, std::uint64_t track, TimeNs begin,
            TimeNs end, std::string_view arguments) {
    Add("X", name, track,
        fmt::format("\"cat\":\"{}\",\"ts\":{},\"dur\":{},\"args\":{{{}}}", category,
                    TraceMicroseconds(begin), TraceMicroseconds(end - begin), arguments));
  }
  // An arrow from the span around one point to the span around another.
  struct Point {
    std::uint64_t track = 0;
    TimeNs at = 0;
  };
  void Arrow(const char* name, const char* category, std::uint64_t id, const Point& from,
             const Point& to) {
    constexpr const char* kFields = "\"cat\":\"{}\",\"id\":{},\"ts\":{}{}";
    Add("s", name, from.track, fmt::format(kFields, category, id, TraceMicroseconds(from.at), ""));
    Add("f", name, to.track,
        fmt::format(kFields, category, id, TraceMicroseconds(to.at), ",\"bp\":\"e\""));
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
                   "{{\"ph\":\"{}\",\"name\":{},\"pid\":{},\"tid\":{},{}}}", phase,
                   QuotedForTrace(name), process_, track, more);
    if (text_.size() >= kPieceBytes) Flush();
  }
  void Flush() {
    accepted_ = accepted_ && sink_(text_);
    text_.clear();
  }

  static constexpr std::size_t kPieceBytes = 1 << 16;

  const std::uint64_t process_;
  const Sink& sink_;
  std::string text_;
  bool first_ = true;
  bool accepted_ = true;
};

}  // namespace phub::client
