// Logs: one line per event, event=... key=value ..., never one per chunk. This header keeps
// spdlog's headers out of other files. Any thread, unless stated otherwise.
//   LogInfo("event=job_created job=\"{}\" ranks={}", name, world_size);
//
// Text arguments are escaped (Escaped() in printable.h), so a name cannot forge fields, lines or
// terminal sequences: put a field whose text may have blanks in double quotes.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/base/clock.h"

namespace phub {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// The default is kInfo. Lines are written to standard error.
void SetLogLevel(LogLevel level);
bool ParseLogLevel(std::string_view text, LogLevel& level);  // "debug" "info" "warning" "error"
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, const std::string& line);

// Receives the lines of the log. Called on any thread, one call at a time.
using LogSink = void (*)(void* context, LogLevel level, const std::string& line);
// Passes lines to `sink` instead of standard error; null: standard error again. Returns after calls
// of the previous sink have ended, so a sink must not call it. For programs without a log thread.
void SetLogSink(LogSink sink, void* context);

// From now on a thread of its own writes the lines, so a reader of standard error that stalls
// blocks no other thread. At most `lines_max` lines wait; then the oldest are dropped and counted.
// Call it at most once, before other threads log.
void StartLogThread(std::size_t lines_max);
std::uint64_t DroppedLogLines();
// Waits until all lines are written or dropped; false if that takes longer than `timeout`.
bool FlushLog(DurationNs timeout);

// A text argument of a log line.
struct LogText {
  std::string_view text;
};

template <typename T>
decltype(auto) LogArgument(const T& argument) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return LogText{argument};
  } else {
    return (argument);
  }
}

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (!LogEnabled(level)) return;
  LogLine(level, fmt::vformat(format, fmt::make_format_args(LogArgument(args)...)));
}

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  Log<Args...>(LogLevel::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  Log<Args...>(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  Log<Args...>(LogLevel::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  Log<Args...>(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace phub

template <>
struct fmt::formatter<phub::LogText> {
  constexpr auto parse(fmt::format_parse_context& context) { return context.begin(); }
  fmt::format_context::iterator format(const phub::LogText& text,
                                       fmt::format_context& context) const;
};
