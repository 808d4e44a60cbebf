// The daemons of this rack: what they must have in common, and which run of a job a worker that
// calls all of them means.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/control/context.h"
#include "server/control/jobs/diagnoses.h"
#include "server/control/jobs/peer_racks.h"

namespace phub::server {

// Limits of what a worker may say of a rack.
inline constexpr std::size_t kDaemonsPerRackMax = 64;
inline constexpr std::uint32_t kCoresPerDaemonMax = 1024;

// 64 hexadecimal digits: the list of daemons, the versions of the protocols, and the defaults that
// jobs get, since a chunk must be cut the same everywhere.
// Of daemons that jobs may span racks with: their place among the racks, and the topology, too.
std::string HashOfConfiguration(const ControlOptions& options);
// What is wrong with the core loops that `who` says the daemons of this rack have; empty: nothing.
// core_count: this daemon's.
std::string ProblemInCores(const ControlOptions& options, std::size_t core_count,
                           const std::string& who, const std::vector<std::uint32_t>& cores);
// SHA-256 in 64 hexadecimal digits, and enough of that to tell two apart in a message.
std::string Sha256Hex(std::string_view text);
std::string Shortened(const std::string& hash);

// What of the topology must be the same everywhere. Pure function.
std::string DescribeTopologyForHash(const ControlOptions& options);

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
        configuration_(HashOfConfiguration(context.options)) {}

  void GetRack(const v1::GetRackRequest& request, Answer<v1::Rack> answer);
  v1::Rack DescribeRack() const;
  // Core loops of every daemon of the rack, if the request fits the rack and this daemon's place.
  absl::StatusOr<std::vector<std::uint32_t>> CheckRack(const v1::JoinRequest& request) const;
  // Barriers are held by one daemon.
  absl::Status CheckAnchor(const Job& job) const;

  // The run that a worker is to join: null if it is to be created. An older one may end here.
  absl::StatusOr<Job*> FindRunToJoin(const v1::JoinRequest& request, const std::string& tenant);
  // That run of the job: null if it is not known, ABORTED if it is over.
  absl::StatusOr<Job*> FindRunOf(Incarnation incarnation, const std::string& tenant,
                                 const std::string& name);
  // The anchor seats one run of a name at a time: when it seats a new one, the old one is over.
  void Supersede(Job& job, Incarnation by, const std::string& who);

 private:
  Context& context_;
  JobTable& jobs_;
  Ending& ending_;
  Diagnoses& diagnoses_;
  PeerRacks& peer_racks_;
  const std::string configuration_;
};

}  // namespace phub::server
