// What stands in the way of lanes over RDMA on a host, and what to do about it: the exact command
// or setting. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/transport/lane_finding.h"
#include "common/transport/verbs/verbs_facts.h"

namespace phub::transport {

using VerbsFinding = LaneFinding;

struct VerbsNeeds {
  std::uint64_t pinned_bytes = 0;  // that a process will register
  std::optional<Gid> peer = {};    // the other end, as far as it is known
  bool daemon = false;             // phubd also needs windows
};

// Empty devices make one finding, which is no fault. At least one device that is good in all is
// enough for the host: see UsableVerbsDevices.
std::vector<VerbsFinding> JudgeVerbs(const VerbsHostFacts& facts, const VerbsNeeds& needs);
// Devices that lanes can use as things are.
std::uint32_t UsableVerbsDevices(const VerbsHostFacts& facts, const VerbsNeeds& needs);

}  // namespace phub::transport
