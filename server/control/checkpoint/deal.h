// Saved state of jobs that span racks. Each rack's daemon saves and loads the chunks whose home it
// is. A saver asks every one of them; a load comes whole to one, which deals it out. Under
// control's lock.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/control/checkpoint/checkpoints.h"
#include "server/control/jobs/job.h"

namespace phub::server {

// Whether no newer load, or refusal of one, is known, as another rack numbers it:
// its word may come late. Then it is the newest from here on.
bool IsNewestLoad(Job& job, std::uint64_t number);
// Of a call that names a rack: other racks' daemons may ask no more.
absl::Status CheckSpansRacks(const Job& job, bool has_to);
// For who deals out: the other racks are told what comes; `chunks` are all chunks of
// the job. And what of a piece is of this rack's chunks; the rest is kept for the others.
void DealOut(std::uint32_t rack_count, RackIndex self, const std::vector<ChunkRef>& chunks,
             const v1::LoadedState& state, CheckpointArrival& arrival);
std::vector<v1::StatePiece> DealPiece(RackIndex self, CheckpointArrival& arrival,
                                      const v1::StatePiece& piece);

}  // namespace phub::server
