#include "server/control/racks/topology_survey.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/plan/topology_json.h"
#include "server/control/on_control.h"
#include "server/control/racks/rack_messages.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

// A topology of 64 racks in the largest possible number of groups has about 200 KiB.
constexpr std::size_t kTopologyBytesMax = 1 << 20;
// How long a job waits for racks that have not contacted rack 0, in liveness timeouts.
constexpr DurationNs kUnheardTimeouts = 2;

absl::Status RefuseTopology(const std::string& what) {
  return absl::InvalidArgumentError(
      fmt::format("the measured topology of the racks is refused: {}", what));
}

}  // namespace

// Checks that probes of these racks could have found it.
absl::Status TopologySurvey::CheckMeasured(const plan::Topology& topology) const {
  const std::size_t racks = context_.options.racks.size();
  if (topology.members().size() != racks) {
    return RefuseTopology(fmt::format("it has {} members, but `racks` lists {} racks",
                                      topology.members().size(), racks));
  }
  if (exchange::AggregatorCount(topology) > 0) {
    return RefuseTopology(
        "it has aggregating switches, but probes find only switches that do not aggregate");
  }
  // One switch for each group, and one that connects them.
  if (topology.nodes().size() > 2 * racks + 1) {
    return RefuseTopology(fmt::format("it has {} nodes, but probes of {} racks find at most {}",
                                      topology.nodes().size(), racks, 2 * racks + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologySurvey::ParseMeasured(
    std::string_view text) const {
  if (text.size() > kTopologyBytesMax) {
    return RefuseTopology(
        fmt::format("it has {} bytes, and at most {} are allowed", text.size(), kTopologyBytesMax));
  }
  absl::StatusOr<plan::Topology> topology = plan::ParseTopologyJson(text);
  if (!topology.ok()) return RefuseTopology(std::string(MessageOf(topology.status())));
  if (absl::Status status = CheckMeasured(*topology); !status.ok()) return status;
  return std::make_shared<const plan::Topology>(*std::move(topology));
}

bool TopologySurvey::IsRack0() const {
  return context_.options.topology_is_measured && context_.options.rack_index == 0;
}

std::string TopologySurvey::UnheardRacks() const {
  std::string names, troubles;
  for (std::uint32_t rack = 0; rack < known_.size(); ++rack) {
    if (rack == context_.options.rack_index || known_.LastHeard(RackIndex{rack}) != 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ",
                         context_.options.DescribeRack(RackIndex{rack}));
    troubles += known_.DescribeTrouble(RackIndex{rack});
  }
  if (troubles.empty()) troubles = "; is its phubd running?";
  return names.empty()
             ? names
             : fmt::format("this daemon has accepted no message from {} yet{}", names, troubles);
}

// New jobs get new plans; running jobs keep theirs.
void TopologySurvey::AcceptTopology(MeasuredTopology measured, const char* by) {
  const plan::Topology& topology = *measured.topology;
  LogInfo("event=racks_topology by={} racks={} nodes={} links={} widest_mbit_s={:.0f}", by,
          topology.members().size(), topology.nodes().size(), topology.links().size(),
          static_cast<double>(topology.unit_bytes_per_s()) * 8e-6);
  ++topology_number_;
  failure_ = absl::OkStatus();
  measured_ = std::move(measured);
}

// Jobs that wait now are refused; a job that comes later triggers another survey.
void TopologySurvey::FailSurvey(const absl::Status& why) {
  LogWarning("event=survey_failed message=\"{}\"", MessageOf(why));
  context_.counters.Add(ControlCounter::surveys_failed);
  failure_ = why;
  awaited_since_ = 0;
  for (const auto& [from, message, since] : deferred_.TakeRequests()) {
    const std::string& job = message.request().job();
    messages_.RefuseRequest(
        from, message,
        context_.Refuse(ControlCounter::joins_refused_rack,
                        absl::UnavailableError(
                            fmt::format("job {} was not opened: its plan needs the topology of the "
                                        "racks, which could not be measured: {}",
                                        job, MessageOf(why)))));
  }
}

// Rack 0 may be measuring if its daemon is alive.
bool TopologySurvey::MayBeMeasuring() const {
  PHUB_ON_CONTROL();
  if (!context_.options.topology_is_measured) return false;
  if (context_.options.rack_index == 0) return AwaitsSurvey();
  return context_.clock.Now() - known_.LastHeard(RackIndex{0}) < context_.options.liveness_timeout;
}

std::string TopologySurvey::StateText() const {
  if (measured_) return "measured";
  if (under_way_) return "being measured";
  if (!failure_.ok()) {
    return fmt::format("could not be measured: {}", MessageOf(failure_));
  }
  const std::string unheard = UnheardRacks();
  return unheard.empty() ? "not measured yet" : fmt::format("not measured yet: {}", unheard);
}

bool TopologySurvey::AwaitsSurvey() const { return IsRack0() && !measured_; }

void TopologySurvey::AdvanceSurvey() {
  PHUB_ON_CONTROL();
  if (!AwaitsSurvey() || under_way_) return;
  const bool awaited = deferred_.HasRequests();
  if (begun_ && !awaited) return;
  const std::string unheard = UnheardRacks();
  if (unheard.empty()) {
    PHUB_CHECK(surveyor_ != nullptr);
    begun_ = under_way_ = true;
    LogInfo("event=survey_begun racks={}", context_.options.racks.size());
    return surveyor_->Begin();
  }
  const TimeNs now = context_.clock.Now();
  if (!awaited || awaited_since_ == 0) awaited_since_ = awaited ? now : 0;
  if (!awaited || now - awaited_since_ < kUnheardTimeouts * context_.options.liveness_timeout) {
    return;
  }
  FailSurvey(absl::UnavailableError(unheard));
}

const plan::Topology& TopologySurvey::TopologyToPlanFor() const {
  PHUB_ON_CONTROL();
  PHUB_CHECK(!AwaitsSurvey());
  return context_.options.topology_is_measured ? *measured_->topology
                                               : *context_.options.rack_topology;
}

absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologySurvey::TopologyOfJob(
    const v1::PeerJob& job) const {
  PHUB_ON_CONTROL();
  if (context_.options.topology_is_measured) {
    if (!job.topology().empty()) return ParseMeasured(job.topology());
    return RefuseTopology(fmt::format("job {} was sent without a topology", job.job()));
  }
  if (job.topology().empty() && job.measured_unix_ns() == 0) return context_.options.rack_topology;
  return absl::FailedPreconditionError(fmt::format(
      "job {} was sent with a measured topology, but {} has a configured one; set `topology` to "
      "the same value at every rack",
      job.job(), context_.options.DescribeRack(RackIndex{context_.options.rack_index})));
}

void TopologySurvey::OnSurvey(const absl::StatusOr<MeasuredTopology>& surveyed) {
  PHUB_ON_CONTROL();
  under_way_ = false;
  if (measured_) return;  // an operator has applied one meanwhile
  absl::Status status = surveyed.status();
  if (status.ok()) status = CheckMeasured(*surveyed->topology);
  if (!status.ok()) return FailSurvey(status);
  context_.counters.Add(ControlCounter::surveys);
  AcceptTopology(*surveyed, "survey");
}

absl::Status TopologySurvey::ApplyTopology(std::string_view text, std::int64_t unix_ns) {
  PHUB_ON_CONTROL();
  if (!IsRack0()) {
    return absl::FailedPreconditionError(
        "a measured topology can be applied only at rack 0 and if topology = \"probe\" is set at "
        "every rack");
  }
  auto topology = ParseMeasured(text);
  if (!topology.ok()) {
    return context_.Refuse(ControlCounter::topologies_refused, topology.status());
  }
  context_.counters.Add(ControlCounter::topologies_applied);
  AcceptTopology({*std::move(topology), unix_ns}, "operator");
  return absl::OkStatus();
}

TopologyState TopologySurvey::DescribeTopology() const {
  PHUB_ON_CONTROL();
  TopologyState said;
  said.is_measured = context_.options.topology_is_measured;
  if (!IsRack0()) return said;
  said.state = StateText();
  if (measured_) said.measured = *measured_;
  return said;
}

}  // namespace phub::server
