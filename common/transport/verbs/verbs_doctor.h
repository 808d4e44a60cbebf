// Finds what prevents lanes over RDMA on a host, and the command or setting that fixes it. Pure;
// any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/transport/lane_finding.h"
#include "common/transport/verbs/verbs_facts.h"

namespace phub::transport {

using VerbsFinding = LaneFinding;

struct VerbsNeeds {
  std::uint64_t pinned_bytes = 0;  // memory that the process will register
  std::optional<Gid> peer = {};    // address of the other end, if known
  bool daemon = false;             // the process is phubd, which also needs windows
};

// Without devices there is one finding, of level kGood. One usable device is enough for a host: see
// UsableVerbsDevices.
std::vector<VerbsFinding> JudgeVerbs(const VerbsHostFacts& facts, const VerbsNeeds& needs);
// The number of devices that lanes can use now.
std::uint32_t UsableVerbsDevices(const VerbsHostFacts& facts, const VerbsNeeds& needs);

}  // namespace phub::transport
