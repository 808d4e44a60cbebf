// The daemons of this rack: checks that they have the same configuration, and that a worker joins
// the same run of a job at all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/peer_racks.h"
#include "server/control/shared_settings.h"

namespace phub::server {

// Limits for the description of a rack in a request.
inline constexpr std::size_t kDaemonsPerRackMax = 64;
inline constexpr std::uint32_t kCoresPerDaemonMax = 1024;

// Checks the numbers of core loops that `who` expects the daemons of this rack to have. Returns the
// problem, or an empty string. `core_count` is the number of core loops of this daemon.
std::string ProblemInCores(const ControlOptions& options, std::size_t core_count,
                           const std::string& who, const std::vector<std::uint32_t>& cores);

// Owned by Control; under control's lock.
class LocalRack {
 public:
  LocalRack(Context& context, JobTable& jobs, Ending& ending, Diagnoses& diagnoses,
            PeerRacks& peer_racks)
      : context_(context),
        jobs_(jobs),
        ending_(ending),
        diagnoses_(diagnoses),
        peer_racks_(peer_racks),
        endpoints_(context.options.rack_endpoints),
        configuration_(HashOfConfiguration(context.options)) {}

  v1::Rack DescribeRack() const;
  // A daemon of this rack is at another endpoint now: workers that join get it.
  void SetEndpoint(std::uint32_t position, const std::string& endpoint);
  void DescribeSettings(v1::Rack& rack) const;
  // Checks a request against the rack and this daemon's index in it. Returns the number of core
  // loops of every daemon of the rack.
  absl::StatusOr<std::vector<std::uint32_t>> CheckRack(const v1::JoinRequest& request) const;
  // Fails if this daemon is not the anchor, which handles barriers.
  absl::Status CheckAnchor(const Job& job) const;

  // The run for the worker to join; null if it must be created. May end an older run.
  absl::StatusOr<Job*> FindRunToJoin(const v1::JoinRequest& request, const std::string& tenant);
  // The run with this incarnation; null if it is not known, ABORTED if it has ended.
  absl::StatusOr<Job*> FindRunOf(Incarnation incarnation, const std::string& tenant,
                                 const std::string& name);
  // Ends a run because the anchor has started a new one: only one run of a name can be active.
  void Supersede(Job& job, Incarnation by, const std::string& who);

 private:
  Context& context_;
  JobTable& jobs_;
  Ending& ending_;
  Diagnoses& diagnoses_;
  PeerRacks& peer_racks_;
  std::vector<std::string> endpoints_;  // as workers get them; empty: a single daemon
  const std::string configuration_;
};

}  // namespace phub::server
