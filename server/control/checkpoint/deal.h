// Checkpoints of jobs that span racks. Each rack's daemon saves and loads the chunks whose home it
// is. A client saves from every daemon. It loads through one daemon, which distributes the parts to
// the others. Under control's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Whether no load or refusal with a higher number is known. Other racks assign the numbers, and
// their messages may arrive late. If true, this number becomes the newest.
// 0 means not numbered: it is always accepted and not recorded.
bool IsNewestLoad(Job& job, std::uint64_t number);
// FAILED_PRECONDITION if the request names a rack (has_to) and the job does not span racks: other
// racks' daemons may not access such a job.
absl::Status CheckSpansRacks(const Job& job, bool has_to);
// DealOut prepares the messages to the other racks; `chunks` are all chunks of the job. DealPiece
// returns the parts of a piece that belong to this rack's chunks and keeps the other parts for the
// other racks.
void DealOut(std::uint32_t rack_count, RackIndex self, const std::vector<ChunkRef>& chunks,
             const v1::LoadedState& state, CheckpointArrival& arrival);
std::vector<v1::StatePiece> DealPiece(RackIndex self, CheckpointArrival& arrival,
                                      const v1::StatePiece& piece);

}  // namespace phub::server
