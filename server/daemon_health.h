// Whether phubd works, for supervisors: systemd's watchdog, and /healthz and /readyz.
#pragma once

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/http/metrics_server.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

// Control that does not answer for so long is reported, and after the second time the daemon counts
// as hanging. Training needs no control.
inline constexpr DurationNs kControlBusy = 3 * kSecond;
inline constexpr DurationNs kControlHangs = 300 * kSecond;

// Waits for control's lock only if control answers. Any thread.
absl::Status CheckHealth(ControlThread& control, http::MetricsServer::Question question);

}  // namespace phub::server
