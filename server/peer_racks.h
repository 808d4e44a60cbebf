// Applies the settings racks, rack_self and topology to the daemon's parts. Cold.
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

// This daemon's certificate, for calls of other daemons and of an aggregator.
PeerCredentials CredentialsOf(const Settings& settings);

using RackTopology = std::shared_ptr<const plan::Topology>;

// Null without racks. Without a file every rack has one link to one switch. InvalidArgument: the
// file cannot be read, is not a valid topology, or its members do not match the racks.
absl::StatusOr<RackTopology> ReadRackTopology(const Settings& settings);
void SetRacks(const Settings& settings, const RackTopology& topology, ControlOptions& options);
// The following return null without racks. `transports` are connected to control and must outlive
// the links.
std::unique_ptr<PeerLinks> MakePeerLinks(const Settings& settings, ControlThread& control,
                                         const Clock& clock, TransportList& transports);
std::unique_ptr<RackRelay> MakeRackRelay(const Settings& settings, ControlThread& control);
std::unique_ptr<Prober> MakeProber(const Settings& settings, const RackTopology& topology,
                                   ControlThread& control, const Clock& clock);
// Creates the surveyor and registers it with control. Null unless this is rack 0 and topology is
// "probe".
std::unique_ptr<RackSurveyor> SetRackSurveyor(const Settings& settings,
                                              const RackTopology& topology, Control& control,
                                              ControlThread& thread, Prober& prober);
// Starts the parts that answer calls by calling other racks' daemons. Call it before the control
// port accepts calls. Both may be null.
absl::Status StartCalls(Prober* prober, RackRelay* relay);

}  // namespace phub::server
