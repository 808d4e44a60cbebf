// Logs: one line per event, event=... key=value ..., never one per chunk. This header keeps
// spdlog's headers out of other files. Any thread.
//   LogInfo("event=job_created job={} ranks={}", name, world_size);
#pragma once

#include <string>
#include <string_view>

#include <fmt/core.h>

namespace phub {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Any thread, at any time. The default is kInfo. Lines are written to standard error.
void SetLogLevel(LogLevel level);
bool ParseLogLevel(std::string_view text, LogLevel& level);  // "debug" "info" "warning" "error"
bool LogEnabled(LogLevel level);
void LogLine(LogLevel level, const std::string& line);

template <typename... Args>
void LogDebug(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kDebug))
    LogLine(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogInfo(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kInfo))
    LogLine(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogWarning(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kWarning))
    LogLine(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void LogError(fmt::format_string<Args...> format, Args&&... args) {
  if (LogEnabled(LogLevel::kError))
    LogLine(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace phub
