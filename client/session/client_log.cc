#include "client/session/client_log.h"

#include <cstdlib>
#include <mutex>

namespace phub::client {
namespace {

constexpr const char* kVariable = "PHUB_LOG_LEVEL";
constexpr LogLevel kDefault = LogLevel::kWarning;

std::once_flag chosen;

}  // namespace

void ReadLogLevel() {
  std::call_once(chosen, [] {
    const char* const text = std::getenv(kVariable);
    LogLevel level = kDefault;
    const bool valid = text == nullptr || *text == '\0' || ParseLogLevel(text, level);
    SetLogLevel(level);
    if (!valid)
      LogWarning("event=log_level_invalid variable={} value=\"{}\" allowed=\"{}\"", kVariable, text,
                 "debug, info, warning, error");
  });
}

void ChooseLogLevel(LogLevel level) {
  std::call_once(chosen, [] {});
  SetLogLevel(level);
}

}  // namespace phub::client
