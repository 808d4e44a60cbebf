// The calls of one save of a checkpoint to the daemons of a rack. Private to client/checkpoint.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/checkpoint/boundary.h"
#include "client/checkpoint/checkpoint.h"

namespace phub::client {

using Snapshots = std::vector<v1::Snapshot>;            // [daemon]
using Versions = std::vector<v1::GetVersionsResponse>;  // [daemon]
using Daemons = std::span<const CheckpointDaemon>;

// Sets the rack in a request if the job spans racks.
template <typename Request>
void ChooseRack(const CheckpointDaemon& daemon, Request& request) {
  if (daemon.rack) request.mutable_rack()->set_rack(*daemon.rack);
}

// If a job spans racks, the daemons of every rack hold a part of it. They are called through the
// given daemons: each has connections to its counterparts in the other racks.
std::vector<CheckpointDaemon> SpreadOverRacks(const std::vector<CheckpointDaemon>& daemons,
                                              const Versions& versions);
absl::StatusOr<Versions> AskVersions(Daemons daemons, const SaveRequest& request,
                                     const TransferOptions& options);
std::vector<std::string> IdsOf(const Snapshots& snapshots);
// Begins a snapshot at every daemon, or at none. `saver` is the same in every attempt of a save.
absl::StatusOr<Snapshots> BeginSnapshots(Daemons daemons, const SaveRequest& request,
                                         const std::string& saver, const Boundary& boundary,
                                         const TransferOptions& options);
// Releases the snapshots and waits until each daemon is free for another snapshot. Ignores errors:
// a snapshot may be gone already.
void GiveBack(Daemons daemons, const std::vector<std::string>& ids, const TransferOptions& options);
// Reports the checkpoint to every daemon, so that the workers know of it whichever daemon dies
// first. The checkpoint is already on disk, so failures do not matter for it.
absl::Status ReportSave(Daemons daemons, const SaveRequest& request, std::uint64_t iteration,
                        const std::vector<std::string>& ids, const TransferOptions& options);

}  // namespace phub::client
