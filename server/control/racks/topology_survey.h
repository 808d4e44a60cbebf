// Racks whose topology is measured (`topology` is "probe"). Rack 0 starts a survey once every rack
// has contacted it. If the survey fails, it starts another one when a job needs the topology.
// Operators may apply a different topology. Jobs wait for a topology; one that was accepted is only
// ever replaced by another. Each job carries the topology for which it was planned to the other
// racks, so these need not store one. Owned by Control; under control's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "phub/v1/peer.pb.h"
#include "server/control/context.h"
#include "server/control/racks/deferred_messages.h"
#include "server/control/racks/known_racks.h"
#include "server/control/racks/surveyor.h"

namespace phub::server {

class RackMessages;

class TopologySurvey {
 public:
  TopologySurvey(Context& context, const KnownRacks& known, DeferredMessages& deferred,
                 RackMessages& messages)
      : context_(context), known_(known), deferred_(deferred), messages_(messages) {}

  // Required at rack 0, before the first Join or envelope. The surveyor must outlive every job.
  void SetSurveyor(Surveyor& surveyor) { surveyor_ = &surveyor; }
  void OnSurvey(const absl::StatusOr<MeasuredTopology>& surveyed);
  // An operator sets the topology for new jobs. FAILED_PRECONDITION: it is configured, or this is
  // not rack 0's daemon. INVALID_ARGUMENT: probes of these racks cannot find such a topology.
  absl::Status ApplyTopology(std::string_view text, std::int64_t unix_ns);
  TopologyState DescribeTopology() const;

  // Rack 0 has no topology yet, so no job can be planned.
  bool AwaitsSurvey() const;
  // Whether rack 0 may be measuring, as far as this daemon knows.
  bool MayBeMeasuring() const;
  // Starts a survey if necessary.
  void AdvanceSurvey();

  // Null: the topology is configured, or not measured yet.
  const MeasuredTopology* measured() const { return measured_ ? &*measured_ : nullptr; }
  // Changes whenever another topology is accepted, so that plans for the older one are dropped.
  std::uint64_t topology_number() const { return topology_number_; }
  // The topology for which rack 0 plans. REQUIRES: !AwaitsSurvey.
  const plan::Topology& TopologyToPlanFor() const;
  // The topology for which the job's plan was made. FAILED_PRECONDITION: the topology is
  // configured, so rack 0 may not send one. INVALID_ARGUMENT: it is not a valid topology of these
  // racks.
  absl::StatusOr<std::shared_ptr<const plan::Topology>> TopologyOfJob(const v1::PeerJob& job) const;

 private:
  absl::Status CheckMeasured(const plan::Topology& topology) const;
  absl::StatusOr<std::shared_ptr<const plan::Topology>> ParseMeasured(std::string_view text) const;
  bool IsRack0() const;
  // Why no survey can start: the racks that have not contacted this one; empty if all have.
  std::string UnheardRacks() const;
  void AcceptTopology(MeasuredTopology measured, const char* by);
  void FailSurvey(const absl::Status& why);
  std::string StateText() const;

  Context& context_;
  const KnownRacks& known_;
  DeferredMessages& deferred_;
  RackMessages& messages_;
  Surveyor* surveyor_ = nullptr;
  std::optional<MeasuredTopology> measured_;  // new jobs are planned for this topology
  std::uint64_t topology_number_ = 0;
  bool begun_ = false;  // at least one survey was begun
  bool under_way_ = false;
  TimeNs awaited_since_ = 0;  // since when jobs wait for a rack that is not connected yet; 0: none
  absl::Status failure_;      // why the last survey failed
};

}  // namespace phub::server
