#include "server/control/rpc/rack_surveyor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/control/racks/topology_survey.h"
#include "server/tenant/tenant.h"

namespace phub::server {
namespace {

constexpr std::uint32_t kRepeat = 2;
// For the probes of pairs; those of groups follow. A job waits longer: kSurveyPatience.
constexpr DurationNs kSurveyDuration = 12 * kSecond;
constexpr DurationNs kDurationMin = 100 * kMillisecond, kDurationMax = 500 * kMillisecond;
// A rack takes part in one probe at a time, and an operator may have started another one.
constexpr DurationNs kBusyMax = 20 * kSecond;
// A probe of a daemon that has just started, or of a busy host, may fail once and then succeed.
constexpr DurationNs kFailingMax = 4 * kSecond;
constexpr auto kBetweenTries = std::chrono::milliseconds(200);

}  // namespace

DurationNs SurveyProbeDuration(std::uint32_t rack_count) {
  const DurationNs probes = DurationNs{kRepeat} * rack_count * (rack_count - 1) / 2;
  return std::clamp(kSurveyDuration / std::max<DurationNs>(probes, 1), kDurationMin, kDurationMax);
}

void RackSurveyor::Begin() {
  const absl::Status launched = prober_.Launch([this] {
    const absl::StatusOr<MeasuredTopology> surveyed = Run();
    control_.Run([&](Control& control) { control.survey().OnSurvey(surveyed); });
  });
  if (!launched.ok()) LogInfo("event=survey_not_begun reason=\"{}\"", MessageOf(launched));
}

absl::StatusOr<MeasuredTopology> RackSurveyor::Run() {
  const auto count = static_cast<std::uint32_t>(names_.size());
  const plan::SurveyOptions options{.duration = SurveyProbeDuration(count), .repeat = kRepeat};
  const absl::StatusOr<plan::Surveyed> surveyed = plan::Survey(
      count, options,
      [this](plan::RankPair pair, DurationNs duration) { return Probe(pair, duration); });
  if (!surveyed.ok()) return surveyed.status();
  absl::StatusOr<plan::Topology> topology =
      plan::TopologyOf(names_, surveyed->measured, surveyed->groups, surveyed->between);
  if (!topology.ok()) return topology.status();
  std::string groups;
  for (const auto& group : surveyed->groups) groups += fmt::format("{{{}}}", fmt::join(group, " "));
  LogInfo("event=survey racks={} groups=\"{}\"", count, groups);
  return MeasuredTopology{std::make_shared<const plan::Topology>(*std::move(topology)), WallNow()};
}

absl::StatusOr<plan::PairMeasure> RackSurveyor::Probe(plan::RankPair pair, DurationNs duration) {
  v1::ProbePairRequest request;
  request.set_from_rack(pair.first);
  request.set_to_rack(pair.second);
  request.set_duration_ns(duration);
  const SystemClock clock;
  const TimeNs begun = clock.Now();
  absl::StatusOr<v1::ProbePairResponse> response = ProbeOnce(request);
  while (!response.ok() && !prober_.stopping()) {
    const bool is_busy = absl::IsResourceExhausted(response.status());
    if (clock.Now() - begun >= (is_busy ? kBusyMax : kFailingMax)) break;
    std::this_thread::sleep_for(kBetweenTries);
    response = ProbeOnce(request);
  }
  if (!response.ok()) {
    return absl::Status(response.status().code(),
                        fmt::format("the probe of rack {} from rack {} failed: {}", pair.second,
                                    pair.first, MessageOf(response.status())));
  }
  return plan::PairMeasure{.round_trip_s = static_cast<double>(response->round_trip_ns()) * 1e-9,
                           .out_bytes_per_s = response->out().bytes_per_s(),
                           .back_bytes_per_s = response->back().bytes_per_s(),
                           .out_mean_bytes_per_s = response->out().mean_bytes_per_s(),
                           .back_mean_bytes_per_s = response->back().mean_bytes_per_s()};
}

absl::StatusOr<v1::ProbePairResponse> RackSurveyor::ProbeOnce(const v1::ProbePairRequest& request) {
  const auto promise = std::make_shared<std::promise<absl::StatusOr<v1::ProbePairResponse>>>();
  std::future<absl::StatusOr<v1::ProbePairResponse>> future = promise->get_future();
  control_.Run([&](Control& control) {
    prober_.ProbePair(control, request,
                      [promise](const absl::Status& status, const v1::ProbePairResponse& response) {
                        if (status.ok()) return promise->set_value(response);
                        promise->set_value(status);
                      });
  });
  return future.get();
}

}  // namespace phub::server
