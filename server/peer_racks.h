// What the settings racks, rack_self and topology mean for the daemon's parts. Cold.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/plan/topology.h"
#include "server/config/settings.h"
#include "server/control/rpc/peer_links.h"
#include "server/control/rpc/prober.h"
#include "server/control/rpc/rack_relay.h"
#include "server/control/rpc/rack_surveyor.h"
#include "server/transports/transport_list.h"

namespace phub::server {

using RackTopology = std::shared_ptr<const plan::Topology>;

// Null without racks. Without a file every rack has one link to one switch. InvalidArgument: the
// file cannot be read, is no topology, or has another number of members than there are racks.
absl::StatusOr<RackTopology> ReadRackTopology(const Settings& settings);
void SetRacks(const Settings& settings, const RackTopology& topology, ControlOptions& options);
// All are null without racks. Transports are connected to control, and outlive the links.
std::unique_ptr<PeerLinks> MakePeerLinks(const Settings& settings, ControlThread& control,
                                         const Clock& clock, TransportList& transports);
std::unique_ptr<RackRelay> MakeRackRelay(const Settings& settings, ControlThread& control);
std::unique_ptr<Prober> MakeProber(const Settings& settings, const RackTopology& topology,
                                   ControlThread& control, const Clock& clock);
// Control's; null unless this is rack 0 and has the topology measured.
std::unique_ptr<RackSurveyor> SetRackSurveyor(const Settings& settings,
                                              const RackTopology& topology, Control& control,
                                              ControlThread& thread, Prober& prober);
// What answers calls by calls to other racks' daemons: before calls come. Both may be null.
absl::Status StartCalls(Prober* prober, RackRelay* relay);

}  // namespace phub::server
