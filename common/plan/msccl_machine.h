// Executes an MSCCL program symbolically: what it moves from where to where. Part of
// common/plan/msccl.h. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/msccl_program.h"

namespace phub::plan {

// What one chunk of the data goes through. Ranks are GPUs.
struct MscclTransfer {
  std::uint32_t from;
  std::uint32_t to;
  std::uint32_t step;
};

struct MscclChunk {
  std::int64_t home = -1;  // where the sum was completed, or where it was from the start
  std::vector<MscclTransfer> partials;  // of sums that were not complete
  std::vector<MscclTransfer> results;
};

// By chunk. The program's collective is allreduce, allgather or reduce_scatter; of the latter two
// its chunks are a multiple of its GPUs.
absl::StatusOr<std::vector<MscclChunk>> ExecuteMsccl(const MscclProgram& program);

}  // namespace phub::plan
