#include "common/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace phub {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto created = spdlog::stderr_color_mt("phub");
    created->set_pattern("%Y-%m-%dT%H:%M:%S.%e level=%l %v");
    created->flush_on(spdlog::level::info);
    return created;
  }();
  return *logger;
}

}  // namespace

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

bool ParseLogLevel(std::string_view text, LogLevel& level) {
  if (text == "debug") level = LogLevel::kDebug;
  else if (text == "info") level = LogLevel::kInfo;
  else if (text == "warning") level = LogLevel::kWarning;
  else if (text == "error") level = LogLevel::kError;
  else return false;
  return true;
}

bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, const std::string& line) {
  Logger().log(ToSpdlog(level), "{}", line);
}

}  // namespace phub
