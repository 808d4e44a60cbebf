// The daemon's connection to an aggregator of sums (docs/aggregation.md): leases, and the sockets
// of core loops.
//
// Core loops receive the sums of an aggregator on this host on the loopback address, whatever
// address it has for workers, and those of another host's on the address from which this host
// reaches it, unless the setting sum_listen names another one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/aggregation/endpoint_text.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "server/config/settings.h"
#include "server/control/lanes/sum_network.h"
#include "server/control/ports/control_thread.h"
#include "server/control/rpc/sum_leases.h"

namespace phub::server {

class SumLink final : public SumNetwork {
 public:
  // `address`: numeric, where core loops receive. The references must outlive it. kInvalidArgument:
  // this host has no such address.
  static absl::StatusOr<std::unique_ptr<SumLink>> Create(SumLeaseOptions leases,
                                                         const std::string& address,
                                                         std::size_t core_loops,
                                                         ControlThread& control,
                                                         const Clock& clock);

  absl::Status Start() { return leases_.Start(); }
  // Readable while a datagram waits for one of the core loop's streams.
  int EventsOf(std::size_t core) const { return events_[core].get(); }

  absl::StatusOr<std::unique_ptr<SumPort>> MakePort(CoreIndex core,
                                                    const aggregation::Geometry& geometry,
                                                    aggregation::CoreStream& stream,
                                                    phub_endpoint& here) override;
  void Grant(SumLeaseRequest request, Incarnation job, CoreIndex core) override;
  void End(aggregation::LeaseNumber number) override { leases_.End(number); }

 private:
  SumLink(SumLeaseOptions leases, const aggregation::ParsedAddress& address, ControlThread& control,
          const Clock& clock);

  const aggregation::ParsedAddress address_;  // with port 0
  ControlThread& control_;
  std::vector<Descriptor> events_;  // [core]: an epoll of the sockets of its streams
  SumLeases leases_;
};

// Leaves `link` null if sum_aggregator is empty. Otherwise control uses it from now on, and its
// thread runs.
absl::Status MakeSumLink(const Settings& settings, std::size_t core_loops, Control& control,
                         ControlThread& control_thread, const Clock& clock,
                         std::unique_ptr<SumLink>& link);
// -1 for null.
int EventsOf(const SumLink* link, std::size_t core);

}  // namespace phub::server
