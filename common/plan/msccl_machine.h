// Executes an MSCCL program symbolically and records its transfers. Part of common/plan/msccl.h.
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/msccl_program.h"

namespace phub::plan {

// Ranks are GPUs.
struct MscclTransfer {
  std::uint32_t from;
  std::uint32_t to;
  std::uint32_t step;
};

struct MscclChunk {
  std::int64_t home = -1;               // the GPU that completed the sum, or had it from the start
  std::vector<MscclTransfer> partials;  // transfers of partial sums
  std::vector<MscclTransfer> results;   // transfers of the complete sum
};

// The result is indexed by chunk. REQUIRES: the collective is allreduce, allgather or
// reduce_scatter. For allgather and reduce_scatter the chunks must be a multiple of the GPUs.
absl::StatusOr<std::vector<MscclChunk>> ExecuteMsccl(const MscclProgram& program);

}  // namespace phub::plan
