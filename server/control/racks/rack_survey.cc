#include "server/control/racks/rack_survey.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/plan/topology_json.h"
#include "server/control/text.h"
#include "server/core/exchange/rack_plan.h"

namespace phub::server {
namespace {

// Of 64 racks in as many groups as there can be it has some 200 KiB.
constexpr std::size_t kTopologyBytesMax = 1 << 20;
// How long a job waits for racks that were never heard of, in liveness timeouts.
constexpr DurationNs kUnheardTimeouts = 2;

absl::Status RefuseTopology(const std::string& what) {
  return absl::InvalidArgumentError(
      fmt::format("the measured topology of the racks is refused: {}", what));
}

// Whether probes of these racks could have found it.
absl::Status CheckMeasured(const Control::State& state, const plan::Topology& topology) {
  const std::size_t racks = state.options.racks.size();
  if (topology.members().size() != racks) {
    return RefuseTopology(fmt::format("it has {} members, and `racks` names {} racks",
                                      topology.members().size(), racks));
  }
  if (exchange::AggregatorCount(topology) > 0) {
    return RefuseTopology("it has switches that sum, and no daemons stand for them");
  }
  // A switch for each group, and one between them.
  if (topology.nodes().size() > 2 * racks + 1) {
    return RefuseTopology(fmt::format("it has {} nodes, and probes of {} racks find at most {}",
                                      topology.nodes().size(), racks, 2 * racks + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const plan::Topology>> ParseMeasured(const Control::State& state,
                                                                    std::string_view text) {
  if (text.size() > kTopologyBytesMax) {
    return RefuseTopology(
        fmt::format("it has {} bytes, and at most {} are taken", text.size(), kTopologyBytesMax));
  }
  absl::StatusOr<plan::Topology> topology = plan::ParseTopologyJson(text);
  if (!topology.ok()) return RefuseTopology(std::string(MessageOf(topology.status())));
  if (absl::Status status = CheckMeasured(state, *topology); !status.ok()) return status;
  return std::make_shared<const plan::Topology>(*std::move(topology));
}

bool IsRack0(const Control::State& state) {
  return state.options.topology_is_measured && state.options.rack_index == 0;
}

// What keeps it from being measured; empty: nothing.
std::string UnheardRacks(const Control::State& state) {
  std::string names, troubles;
  for (std::uint32_t rack = 0; rack < state.racks.known.size(); ++rack) {
    if (rack == state.options.rack_index || state.racks.known[rack].last_heard != 0) continue;
    names +=
        fmt::format("{}{}", names.empty() ? "" : ", ", state.DescribeRackBriefly(RackIndex{rack}));
    troubles += DescribeTrouble(state.racks.known[rack]);
  }
  if (troubles.empty()) troubles = "; is its phubd running?";
  return names.empty() ? names : fmt::format("{} was never heard of here{}", names, troubles);
}

// Plans are made anew; jobs that run keep theirs.
void Accept(Control::State& state, MeasuredTopology measured, const char* by) {
  const plan::Topology& topology = *measured.topology;
  LogInfo("event=racks_topology by={} racks={} nodes={} links={} widest_mbit_s={:.0f}", by,
          topology.members().size(), topology.nodes().size(), topology.links().size(),
          static_cast<double>(topology.unit_bytes_per_s()) * 8e-6);
  state.racks.plans.clear();
  state.racks.survey.failure = absl::OkStatus();
  state.racks.survey.measured = std::move(measured);
}

// Whoever waits hears of it; whoever comes later has it tried again.
void FailSurvey(Control::State& state, const absl::Status& why) {
  RackSurvey& survey = state.racks.survey;
  LogWarning("event=survey_failed message=\"{}\"", MessageOf(why));
  state.counters.Add(ControlCounter::surveys_failed);
  survey.failure = why;
  survey.awaited_since = 0;
  std::vector<DeferredMessage> waiting;
  std::erase_if(state.racks.deferred, [&](const auto& each) {
    if (!each.message.has_request()) return false;
    waiting.push_back(each);
    return true;
  });
  for (const auto& [from, message, since] : waiting) {
    const std::string& job = message.request().job();
    RefuseRequest(state, from, message,
                  state.Refuse(ControlCounter::joins_refused_rack,
                               absl::UnavailableError(fmt::format(
                                   "job {} was not opened: its plan needs the topology of the "
                                   "racks, which could not be measured: {}",
                                   job, MessageOf(why)))));
  }
}

// At rack 0, as far as it is known here: nothing is measured by a daemon that is gone.
bool MayBeMeasuring(const Control::State& state) {
  if (!state.options.topology_is_measured) return false;
  if (state.options.rack_index == 0) return AwaitsSurvey(state);
  return state.clock.Now() - state.racks.known[0].last_heard < state.options.liveness_timeout;
}

std::string StateText(const Control::State& state) {
  const RackSurvey& survey = state.racks.survey;
  if (survey.measured) return "measured";
  if (survey.under_way) return "being measured";
  if (!survey.failure.ok()) {
    return fmt::format("could not be measured: {}", MessageOf(survey.failure));
  }
  const std::string unheard = UnheardRacks(state);
  return unheard.empty() ? "not measured yet" : fmt::format("not measured yet: {}", unheard);
}

}  // namespace

bool AwaitsSurvey(const Control::State& state) {
  return IsRack0(state) && !state.racks.survey.measured;
}

void AdvanceSurvey(Control::State& state) {
  RackSurvey& survey = state.racks.survey;
  if (!AwaitsSurvey(state) || survey.under_way) return;
  const auto& deferred = state.racks.deferred;
  const bool awaited = std::any_of(deferred.begin(), deferred.end(),
                                   [](const auto& each) { return each.message.has_request(); });
  if (survey.begun && !awaited) return;
  const std::string unheard = UnheardRacks(state);
  if (unheard.empty()) {
    PHUB_CHECK(survey.surveyor != nullptr);
    survey.begun = survey.under_way = true;
    LogInfo("event=survey_begun racks={}", state.options.racks.size());
    return survey.surveyor->Begin();
  }
  const TimeNs now = state.clock.Now();
  if (!awaited || survey.awaited_since == 0) survey.awaited_since = awaited ? now : 0;
  if (!awaited || now - survey.awaited_since < kUnheardTimeouts * state.options.liveness_timeout) {
    return;
  }
  FailSurvey(state, absl::UnavailableError(unheard));
}

const plan::Topology& TopologyToPlanFor(const Control::State& state) {
  PHUB_CHECK(!AwaitsSurvey(state));
  return state.options.topology_is_measured ? *state.racks.survey.measured->topology
                                            : *state.options.rack_topology;
}

absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologyOfJob(const Control::State& state,
                                                                    const v1::PeerJob& job) {
  if (state.options.topology_is_measured) {
    if (!job.topology().empty()) return ParseMeasured(state, job.topology());
    return RefuseTopology(fmt::format("job {} came without one", job.job()));
  }
  if (job.topology().empty() && job.measured_unix_ns() == 0) return state.options.rack_topology;
  return absl::FailedPreconditionError(
      fmt::format("job {} comes with a topology of its own, and {} has one by its configuration",
                  job.job(), state.DescribeRackBriefly(RackIndex{state.options.rack_index})));
}

std::deque<DeferredMessage> TakeDeferred(Control::State& state) {
  std::deque<DeferredMessage> taken;
  taken.swap(state.racks.deferred);
  if (!AwaitsSurvey(state) || state.draining) return taken;
  const DurationNs patience = kHeldTimeouts * state.options.liveness_timeout + kSurveyPatience;
  const TimeNs now = state.clock.Now();
  std::deque<DeferredMessage> others;
  for (DeferredMessage& each : taken) {
    if (!each.message.has_request()) {
      others.push_back(std::move(each));
    } else if (now - each.since < patience) {
      state.racks.deferred.push_back(std::move(each));
    }
  }
  return others;
}

TimeNs PatienceOf(const Control::State& state, const HeldJoin& held) {
  return held.deadline + (MayBeMeasuring(state) ? kSurveyPatience : 0);
}

std::string WhyNotOpened(const Control::State& state) {
  const std::string opener = state.DescribeRackBriefly(RackIndex{0});
  if (MayBeMeasuring(state)) {
    return fmt::format(
        "{} has not opened it, and may still have the topology of the racks "
        "measured; try again",
        opener);
  }
  if (state.options.rack_index == 0) {
    return fmt::format("an older run of it is not over at {}; try again", opener);
  }
  return fmt::format(
      "{}, which opens jobs that span racks, does not answer; is its phubd running?{}", opener,
      DescribeTrouble(state.racks.known[0]));
}

void Control::SetSurveyor(Surveyor& surveyor) { state_->racks.survey.surveyor = &surveyor; }

void Control::OnSurvey(const absl::StatusOr<MeasuredTopology>& surveyed) {
  RackSurvey& survey = state_->racks.survey;
  survey.under_way = false;
  if (survey.measured) return;  // an operator was faster
  absl::Status status = surveyed.status();
  if (status.ok()) status = CheckMeasured(*state_, *surveyed->topology);
  if (!status.ok()) return FailSurvey(*state_, status);
  state_->counters.Add(ControlCounter::surveys);
  Accept(*state_, *surveyed, "survey");
}

absl::Status Control::ApplyTopology(std::string_view text, std::int64_t unix_ns) {
  if (!IsRack0(*state_)) {
    return absl::FailedPreconditionError(
        "the topology of these racks is configured; to have what was measured applied, write "
        "topology = \"probe\" at every rack");
  }
  auto topology = ParseMeasured(*state_, text);
  if (!topology.ok()) {
    return state_->Refuse(ControlCounter::topologies_refused, topology.status());
  }
  state_->counters.Add(ControlCounter::topologies_applied);
  Accept(*state_, {*std::move(topology), unix_ns}, "operator");
  return absl::OkStatus();
}

TopologyState Control::DescribeTopology() const {
  TopologyState said;
  said.is_measured = state_->options.topology_is_measured;
  if (!IsRack0(*state_)) return said;
  said.state = StateText(*state_);
  if (state_->racks.survey.measured) said.measured = *state_->racks.survey.measured;
  return said;
}

}  // namespace phub::server
