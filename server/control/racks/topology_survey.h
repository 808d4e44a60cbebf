// Racks whose topology is measured (`topology` is "probe"): rack 0 has it measured once it has
// heard of every rack, and again when a job needs it after that had failed. Operators may say
// another one. Jobs wait for it; a topology that was accepted is never taken back, only replaced.
// The topology goes to the other racks with each job that was planned for it, so nobody has to
// remember one. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/racks.h"

namespace phub::server {

class RackMessages;

class TopologySurvey {
 public:
  TopologySurvey(Context& context, Racks& racks, RackMessages& messages)
      : context_(context), racks_(racks), messages_(messages) {}

  // Rack 0 needs one, before the first Join or envelope; it outlives every job.
  void SetSurveyor(Surveyor& surveyor) { racks_.survey.surveyor = &surveyor; }
  void OnSurvey(const absl::StatusOr<MeasuredTopology>& surveyed);
  // An operator says what new jobs are planned for. FAILED_PRECONDITION: it is configured, or this
  // is not rack 0's daemon. INVALID_ARGUMENT: probes of these racks cannot find such a topology.
  absl::Status ApplyTopology(std::string_view text, std::int64_t unix_ns);
  TopologyState DescribeTopology() const;

  // Rack 0 has none yet, so no job can be planned.
  bool AwaitsSurvey() const;
  // At rack 0, as far as it is known here.
  bool MayBeMeasuring() const;
  // Begins one if it is time.
  void AdvanceSurvey();

  // What rack 0 plans for. REQUIRES: !AwaitsSurvey.
  const plan::Topology& TopologyToPlanFor() const;
  // What the job's plan was made for. FAILED_PRECONDITION: rack 0 has no say in it.
  // INVALID_ARGUMENT: it is no topology of these racks.
  absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologyOfJob(const v1::PeerJob& job) const;

 private:
  absl::Status CheckMeasured(const plan::Topology& topology) const;
  absl::StatusOr<std::shared_ptr<const plan::Topology>> ParseMeasured(std::string_view text) const;
  bool IsRack0() const;
  // What keeps it from being measured; empty: nothing.
  std::string UnheardRacks() const;
  void AcceptTopology(MeasuredTopology measured, const char* by);
  void FailSurvey(const absl::Status& why);
  std::string StateText() const;

  Context& context_;
  Racks& racks_;
  RackMessages& messages_;
};

}  // namespace phub::server
