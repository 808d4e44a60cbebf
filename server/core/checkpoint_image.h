// The state of a shard's chunks outside the shard, for checkpoints.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/base/mapped_memory.h"
#include "common/optimizer/hyper_parameters.h"
#include "common/simd/kernels.h"
#include "common/wire/message.h"

namespace phub::server {

// State of a shard's chunks: a snapshot that is taken, or a checkpoint that is loaded. Created by
// control; the core loop uses it from kTakeSnapshot or kLoadCheckpoint until the command's end (see
// commands.h). For chunks whose home is another rack it has only numbers: the home saves and loads
// them.
struct CheckpointImage {
  struct ChunkImage {
    std::byte* parameters = nullptr;  // in parameter_type
    std::byte* masters = nullptr;     // in type; null if the parameters are the masters
    std::array<std::byte*, simd::kStatesMax> state{};
    std::uint64_t reductions = 0;
    Iteration applied{};  // snapshots only
    // The chunk was copied (snapshot) or has been loaded (checkpoint). Control reads it while a
    // snapshot is taken, to send the chunks that are already copied.
    std::atomic<bool> ready{false};
  };
  struct KeyImage {
    std::uint64_t target = 0;                  // copy the chunks at this number of reductions
    wire::HyperParameters hyper_parameters{};  // the version that the copied round named
  };
  std::vector<KeyImage> keys;            // [key]; snapshots only
  std::unique_ptr<ChunkImage[]> chunks;  // [chunk] of the shard
  std::uint32_t chunk_count = 0;
  // For snapshots:
  std::uint32_t chunks_left = 0;  // chunks at home that are not copied yet
  std::uint32_t cursor = 0;       // Advance() has visited the chunks before it
  bool missed = false;            // some chunk was past its target
  MappedMemory memory;
};

}  // namespace phub::server
