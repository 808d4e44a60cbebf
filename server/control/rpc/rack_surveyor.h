// Measures the network between all racks with the prober, on one of its threads, and reports the
// resulting topology to Control.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/survey.h"
#include "phub/v1/probe.pb.h"
#include "server/control/ports/control_thread.h"
#include "server/control/racks/surveyor.h"
#include "server/control/rpc/prober.h"

namespace phub::server {

class RackSurveyor final : public Surveyor {
 public:
  // Both must outlive it; the prober's Stop() ends a running survey. `names`: the names of the
  // topology's members, in the order of racks.
  RackSurveyor(ControlThread& control, Prober& prober, std::vector<std::string> names)
      : control_(control), prober_(prober), names_(std::move(names)) {}

  void Begin() override;

 private:
  absl::StatusOr<MeasuredTopology> Run();
  absl::StatusOr<plan::PairMeasure> Probe(plan::RankPair pair, DurationNs duration);
  absl::StatusOr<v1::ProbePairResponse> ProbeOnce(const v1::ProbePairRequest& request);

  ControlThread& control_;
  Prober& prober_;
  const std::vector<std::string> names_;
};

// Duration of one probe in a survey of that many racks. Together the probes take about 12 s, unless
// each would then be too short. Pure function.
DurationNs SurveyProbeDuration(std::uint32_t rack_count);

}  // namespace phub::server
