// This moment of the daemon's clock, for answers. Under control's lock.
#pragma once

#include "common/base/host_name.h"
#include "phub/v1/trace.pb.h"
#include "server/control/context.h"

namespace phub::server {

inline v1::DaemonClock DescribeClock(const Context& context) {
  v1::DaemonClock clock;
  clock.set_host(HostName());
  clock.set_started_ns(context.started_at);
  clock.set_now_ns(context.clock.Now());
  return clock;
}

}  // namespace phub::server
