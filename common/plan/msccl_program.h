// Parses an MSCCL XML file into structs, without executing it. Part of common/plan/msccl.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace phub::plan {

enum class MscclOperation : std::uint8_t {
  kSend,                   // s
  kReceive,                // r
  kReceiveCopySend,        // rcs
  kReceiveReduceSend,      // rrs
  kReceiveReduceCopy,      // rrc
  kReceiveReduceCopySend,  // rrcs
  kCopy,                   // cpy
  kReduce,                 // re
  kNothing,                // nop
};

struct MscclPlace {
  char buffer = 'i';  // i, o or s
  std::int64_t offset = 0;
};

struct MscclStep {
  MscclOperation operation = MscclOperation::kNothing;
  MscclPlace source, target;
  std::int64_t count = 1;
  std::int64_t wait_block = -1;  // a thread block of the same GPU; -1: none
  std::int64_t wait_step = -1;
  std::size_t line = 0;
};

struct MscclBlock {
  std::int64_t send = -1;  // peer GPUs; -1: none
  std::int64_t receive = -1;
  std::int64_t channel = 0;
  std::vector<MscclStep> steps;
};

// A chunk of the input that is copied to the output before the first step. TACCL writes these.
struct MscclCopy {
  std::int64_t input = 0;
  std::int64_t output = 0;
  std::size_t line = 0;
};

struct MscclGpu {
  std::array<std::int64_t, 3> chunks = {0, 0, 0};  // sizes of the buffers i, o, s
  std::vector<MscclCopy> copies;
  std::vector<MscclBlock> blocks;  // by id
};

struct MscclProgram {
  std::string name;
  std::string collective;
  bool in_place = false;
  std::int64_t chunk_count = 0;
  std::vector<MscclGpu> gpus;  // by id
};

// Checks the limits of common/plan/msccl.h, but not peers, waits and offsets.
absl::StatusOr<MscclProgram> ReadMsccl(std::string_view xml);

}  // namespace phub::plan
