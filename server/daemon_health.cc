#include "server/daemon_health.h"

#include <fmt/format.h>

#include "server/control/parts.h"

namespace phub::server {

absl::Status CheckHealth(ControlThread& control, http::MetricsServer::Question question) {
  const bool ready = question == http::MetricsServer::Question::kReady;
  if (const DurationNs silent = control.SilentFor();
      silent >= (ready ? kControlBusy : kControlHangs)) {
    return absl::UnavailableError(
        fmt::format("control has not answered for {} s", silent / kSecond));
  }
  if (!ready) return absl::OkStatus();
  const v1::ServerInfo server = control.Run(
      {TurnKind::kMetrics, "health"}, [](Control& each) { return each.admin().DescribeServer(); });
  if (server.state() == "serving") return absl::OkStatus();
  return absl::UnavailableError("phubd is " + server.state());
}

}  // namespace phub::server
