#include "server/control/racks/topology_survey.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/plan/topology_json.h"
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
  for (std::uint32_t rack = 0; rack < racks_.known.size(); ++rack) {
    if (rack == context_.options.rack_index || racks_.known[rack].last_heard != 0) continue;
    names += fmt::format("{}{}", names.empty() ? "" : ", ",
                         context_.options.DescribeRack(RackIndex{rack}));
    troubles += DescribeTrouble(racks_.known[rack]);
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
  racks_.plans.clear();
  racks_.survey.failure = absl::OkStatus();
  racks_.survey.measured = std::move(measured);
}

// Jobs that wait now are refused; a job that comes later triggers another survey.
void TopologySurvey::FailSurvey(const absl::Status& why) {
  RackSurvey& survey = racks_.survey;
  LogWarning("event=survey_failed message=\"{}\"", MessageOf(why));
  context_.counters.Add(ControlCounter::surveys_failed);
  survey.failure = why;
  survey.awaited_since = 0;
  std::vector<DeferredMessage> waiting;
  std::erase_if(racks_.deferred, [&](const auto& each) {
    if (!each.message.has_request()) return false;
    waiting.push_back(each);
    return true;
  });
  for (const auto& [from, message, since] : waiting) {
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
  if (!context_.options.topology_is_measured) return false;
  if (context_.options.rack_index == 0) return AwaitsSurvey();
  return context_.clock.Now() - racks_.known[0].last_heard < context_.options.liveness_timeout;
}

std::string TopologySurvey::StateText() const {
  const RackSurvey& survey = racks_.survey;
  if (survey.measured) return "measured";
  if (survey.under_way) return "being measured";
  if (!survey.failure.ok()) {
    return fmt::format("could not be measured: {}", MessageOf(survey.failure));
  }
  const std::string unheard = UnheardRacks();
  return unheard.empty() ? "not measured yet" : fmt::format("not measured yet: {}", unheard);
}

bool TopologySurvey::AwaitsSurvey() const { return IsRack0() && !racks_.survey.measured; }

void TopologySurvey::AdvanceSurvey() {
  RackSurvey& survey = racks_.survey;
  if (!AwaitsSurvey() || survey.under_way) return;
  const auto& deferred = racks_.deferred;
  const bool awaited = std::any_of(deferred.begin(), deferred.end(),
                                   [](const auto& each) { return each.message.has_request(); });
  if (survey.begun && !awaited) return;
  const std::string unheard = UnheardRacks();
  if (unheard.empty()) {
    PHUB_CHECK(survey.surveyor != nullptr);
    survey.begun = survey.under_way = true;
    LogInfo("event=survey_begun racks={}", context_.options.racks.size());
    return survey.surveyor->Begin();
  }
  const TimeNs now = context_.clock.Now();
  if (!awaited || survey.awaited_since == 0) survey.awaited_since = awaited ? now : 0;
  if (!awaited ||
      now - survey.awaited_since < kUnheardTimeouts * context_.options.liveness_timeout) {
    return;
  }
  FailSurvey(absl::UnavailableError(unheard));
}

const plan::Topology& TopologySurvey::TopologyToPlanFor() const {
  PHUB_CHECK(!AwaitsSurvey());
  return context_.options.topology_is_measured ? *racks_.survey.measured->topology
                                               : *context_.options.rack_topology;
}

absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologySurvey::TopologyOfJob(
    const v1::PeerJob& job) const {
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
  RackSurvey& survey = racks_.survey;
  survey.under_way = false;
  if (survey.measured) return;  // an operator has applied one meanwhile
  absl::Status status = surveyed.status();
  if (status.ok()) status = CheckMeasured(*surveyed->topology);
  if (!status.ok()) return FailSurvey(status);
  context_.counters.Add(ControlCounter::surveys);
  AcceptTopology(*surveyed, "survey");
}

absl::Status TopologySurvey::ApplyTopology(std::string_view text, std::int64_t unix_ns) {
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
  TopologyState said;
  said.is_measured = context_.options.topology_is_measured;
  if (!IsRack0()) return said;
  said.state = StateText();
  if (racks_.survey.measured) said.measured = *racks_.survey.measured;
  return said;
}

}  // namespace phub::server
