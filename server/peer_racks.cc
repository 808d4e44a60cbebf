#include "server/peer_racks.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "common/plan/generators.h"
#include "common/view/view_topology.h"
#include "server/config/data_tls.h"
#include "server/config/rack_settings.h"
#include "server/control/racks/topology_survey.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

absl::StatusOr<plan::Topology> ReadTopology(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPublicFile(path);
  if (!text.ok()) return text.status();
  return view::ParseTopology(*text);
}

// REQUIRES: valid settings.
RackPlace PlaceOf(const Settings& settings) {
  auto place = FindPlaceAmongRacks(settings);
  PHUB_CHECK(place.ok(), "racks={} rack_self={}", settings.racks, settings.rack_self);
  return *std::move(place);
}

}  // namespace

PeerCredentials CredentialsOf(const Settings& settings) {
  return {settings.tls_client_ca, settings.tls_certificate, settings.tls_key};
}

void SetRacks(const Settings& settings, const RackTopology& topology, ControlOptions& options) {
  const RackPlace place = PlaceOf(settings);
  options.racks = place.endpoints;
  options.rack_index = place.self;
  options.aggregator_count = place.aggregator_count;
  options.rack_topology = topology;
  options.topology_is_measured = IsTopologyMeasured(settings);
}

std::unique_ptr<PeerLinks> MakePeerLinks(const Settings& settings, ControlThread& control,
                                         const Clock& clock, TransportList& transports) {
  if (settings.racks.empty()) return nullptr;
  const RackPlace place = PlaceOf(settings);
  PeerLinkOptions options;
  options.racks = place.endpoints;
  options.self = place.self;
  options.credentials = CredentialsOf(settings);
  options.liveness_timeout = settings.liveness_timeout;
  options.dialers = transports.PeerDialers();
  for (const LaneTransport& each : transports.descriptions())
    options.transport_names.push_back(each.name);
  return std::make_unique<PeerLinks>(control, clock, std::move(options));
}

std::unique_ptr<RackRelay> MakeRackRelay(const Settings& settings, ControlThread& control) {
  if (settings.racks.empty()) return nullptr;
  return std::make_unique<RackRelay>(control, PlaceOf(settings).endpoints, CredentialsOf(settings));
}

std::unique_ptr<Prober> MakeProber(const Settings& settings, const RackTopology& topology,
                                   ControlThread& control, const Clock& clock) {
  if (settings.racks.empty()) return nullptr;
  const RackPlace place = PlaceOf(settings);
  // Probes measure paths between racks only, not paths to aggregators.
  if (settings.role == RackRole::kAggregator) return nullptr;
  ProberOptions options;
  options.racks = place.endpoints;
  options.racks.resize(place.endpoints.size() - place.aggregator_count);
  options.self = place.self;
  options.topology = topology;
  options.credentials = CredentialsOf(settings);
  options.liveness_timeout = settings.liveness_timeout;
  options.tls_lanes = DataTlsOf(settings).on;
  return std::make_unique<Prober>(control, clock, std::move(options));
}

std::unique_ptr<RackSurveyor> SetRackSurveyor(const Settings& settings,
                                              const RackTopology& topology, Control& control,
                                              ControlThread& thread, Prober& prober) {
  if (!IsTopologyMeasured(settings) || PlaceOf(settings).self != 0) return nullptr;
  std::vector<std::string> names;
  for (const plan::NodeIndex member : topology->members()) {
    names.push_back(topology->node(member).name);
  }
  auto surveyor = std::make_unique<RackSurveyor>(thread, prober, std::move(names));
  control.survey().SetSurveyor(*surveyor);
  return surveyor;
}

absl::Status StartCalls(Prober* prober, RackRelay* relay) {
  absl::Status status;
  if (prober != nullptr) status = prober->Start();
  if (status.ok() && relay != nullptr) status = relay->Start();
  return status;
}

absl::StatusOr<RackTopology> ReadRackTopology(const Settings& settings) {
  const auto among = FindPlaceAmongRacks(settings);
  if (!among.ok()) return among.status();
  const std::size_t aggregators = among->aggregator_count;
  const std::size_t racks = among->endpoints.size() - aggregators;
  if (racks == 0) return RackTopology();
  if (racks + aggregators > kRacksMax) {
    return absl::InvalidArgumentError(
        fmt::format("racks and aggregators list {} daemons; at most {} are possible",
                    racks + aggregators, kRacksMax));
  }
  // The view's own topology has been checked with the view.
  const bool in_view = !settings.view.topology.empty() && !IsTopologyMeasured(settings);
  if (aggregators > 1 && settings.topology.empty() && !in_view) {
    return absl::InvalidArgumentError(
        fmt::format("aggregators = \"{}\" lists {} daemons; set `topology` to describe which racks "
                    "connect to which of them",
                    settings.aggregators, aggregators));
  }
  auto topology =
      in_view ? view::ParseTopology(settings.view.topology)
      : settings.topology.empty() || IsTopologyMeasured(settings)  // placeholder until measured
          ? plan::Generate(fmt::format("switch:{}{}", racks, aggregators == 1 ? ",aggregate" : ""))
          : ReadTopology(settings.topology);
  if (!topology.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("topology = \"{}\": {}", settings.topology, MessageOf(topology.status())));
  }
  if (topology->members().size() != racks) {
    return absl::InvalidArgumentError(
        fmt::format("topology = \"{}\" has {} members, but racks lists {} racks; member r must be "
                    "rack r",
                    settings.topology, topology->members().size(), racks));
  }
  const std::uint32_t switches = exchange::AggregatorCount(*topology);
  if (aggregators > 0 && switches != aggregators) {
    return absl::InvalidArgumentError(
        fmt::format("topology = \"{}\" has {} aggregating switches, but aggregators lists {} "
                    "daemons; list one daemon for each switch, in order",
                    settings.topology, switches, aggregators));
  }
  return std::make_shared<const plan::Topology>(*std::move(topology));
}

}  // namespace phub::server
