// /healthz and /readyz, as the metrics port and the health port answer them. Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/http/http_server.h"

namespace phub::http {

// kAlive: the process works, so a restart would not help. kReady: it accepts jobs.
enum class HealthQuestion : std::uint8_t { kAlive, kReady };
// OK: yes. Otherwise the message says why not. Must not block.
using Health = std::function<absl::Status(HealthQuestion)>;

// nullopt: it is another path.
inline std::optional<HttpReply> AnswerHealth(std::string_view path, const Health& health) {
  if (path != "/healthz" && path != "/readyz") return std::nullopt;
  const absl::Status status =
      health(path == "/healthz" ? HealthQuestion::kAlive : HealthQuestion::kReady);
  if (status.ok()) return TextReply(200, "ok\n");
  return TextReply(503, std::string(status.message()) + "\n");
}

}  // namespace phub::http
