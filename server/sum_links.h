// The daemon's connections to aggregators of sums (docs/aggregation.md): leases, and the sockets
// of core loops.
//
// Core loops receive the sums of an aggregator on this host on the loopback address, whatever
// address it has for workers, and those of another host's on the address from which this host
// reaches it, unless the setting sum_listen names another one.
//
// Each aggregator has its own connection, thread and leases, so one that is slow or lost does not
// delay calls of the others.
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

struct SumLinkOptions {
  SumLeaseOptions leases;
  std::string address;  // numeric, where core loops receive
};

class SumLinks final : public SumNetwork {
 public:
  // By aggregator, at least one. The references must outlive it. kInvalidArgument: this host has no
  // such address.
  static absl::StatusOr<std::unique_ptr<SumLinks>> Create(std::vector<SumLinkOptions> aggregators,
                                                          std::size_t core_loops,
                                                          ControlThread& control,
                                                          const Clock& clock);

  absl::Status Start();
  // Readable while a datagram waits for one of the core loop's streams, from any aggregator.
  int EventsOf(std::size_t core) const { return events_[core].get(); }

  std::uint32_t aggregator_count() const override {
    return static_cast<std::uint32_t>(links_.size());
  }
  const std::string& NameOf(AggregatorIndex aggregator) const override;
  absl::StatusOr<std::unique_ptr<SumPort>> MakePort(AggregatorIndex aggregator, CoreIndex core,
                                                    const aggregation::Geometry& geometry,
                                                    aggregation::CoreStream& stream,
                                                    phub_endpoint& here) override;
  void Grant(AggregatorIndex aggregator, SumLeaseRequest request, Incarnation job,
             CoreIndex core) override;
  void End(AggregatorIndex aggregator, aggregation::LeaseNumber number) override;

 private:
  // One aggregator.
  struct Link {
    Link(AggregatorIndex self, SumLeaseOptions options, const aggregation::ParsedAddress& here,
         ControlThread& control, const Clock& clock);
    const std::string name;
    const aggregation::ParsedAddress address;  // with port 0
    SumLeases leases;
  };
  explicit SumLinks(ControlThread& control) : control_(control) {}
  Link& LinkOf(AggregatorIndex aggregator) const { return *links_[aggregator.value]; }

  ControlThread& control_;
  std::vector<Descriptor> events_;            // [core]: an epoll of the sockets of its streams
  std::vector<std::unique_ptr<Link>> links_;  // [aggregator]
};

// Leaves `links` null if sum_aggregator is empty. Otherwise control uses them from now on, and
// their threads run.
absl::Status MakeSumLinks(const Settings& settings, std::size_t core_loops, Control& control,
                          ControlThread& control_thread, const Clock& clock,
                          std::unique_ptr<SumLinks>& links);
// -1 for null.
int EventsOf(const SumLinks* links, std::size_t core);

}  // namespace phub::server
