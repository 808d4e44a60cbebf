// Whether phubd works, for supervisors: systemd's watchdog, and /healthz and /readyz.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/http/health_paths.h"
#include "server/control/admin/draining.h"
#include "server/control/ports/control_thread.h"

namespace phub::server {

// Control that does not answer for so long is reported, and after the second time the daemon counts
// as hanging. Training needs no control.
inline constexpr DurationNs kControlBusy = 3 * kSecond;
inline constexpr DurationNs kControlHangs = 300 * kSecond;

// `serving`: all ports are open. Takes no lock, so control may be busy. Any thread.
absl::Status CheckHealth(const ControlThread& control, bool serving, const Draining& draining,
                         http::HealthQuestion question);

// While the daemon is being built; waits_for: empty if for nothing in particular.
absl::Status CheckStarting(const std::string& waits_for, http::HealthQuestion question);

}  // namespace phub::server
