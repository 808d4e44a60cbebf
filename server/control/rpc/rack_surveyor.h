// Has the ways between all racks measured by the prober, on a thread of the prober's, and tells
// Control what topology that shows.
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
  // Both outlive it, and the prober's Stop() ends what is under way. `names`: of the topology's
  // members, in the order of racks.
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

// Of one probe of a survey of so many racks: all of them together take some 12 s, where that leaves
// each enough. Pure.
DurationNs SurveyProbeDuration(std::uint32_t rack_count);

}  // namespace phub::server
