#include "server/daemon_health.h"

#include <fmt/format.h>

namespace phub::server {

absl::Status CheckHealth(const ControlThread& control, bool serving, const Draining& draining,
                         http::HealthQuestion question) {
  if (const DurationNs silent = control.SilentFor(); silent >= kControlHangs) {
    return absl::UnavailableError(
        fmt::format("control has not answered for {} s", silent / kSecond));
  }
  if (question == http::HealthQuestion::kAlive) return absl::OkStatus();
  if (!serving) return absl::UnavailableError("phubd is starting");
  if (!draining.draining()) return absl::OkStatus();
  return absl::UnavailableError("phubd is draining");
}

absl::Status CheckStarting(const std::string& waits_for, http::HealthQuestion question) {
  if (question == http::HealthQuestion::kAlive) return absl::OkStatus();
  return absl::UnavailableError(
      waits_for.empty() ? "phubd is starting" : fmt::format("phubd is starting: {}", waits_for));
}

}  // namespace phub::server
