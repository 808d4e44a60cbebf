// What two ranks, or the ranks of two racks, sent when they disagree. Plain data. A core loop
// writes it before it reports the fault and never afterwards, so control may read it once it has
// the event.
#pragma once

#include <cstdint>

#include "common/base/element_type.h"
#include "common/base/ids.h"
#include "common/wire/message.h"

namespace phub::server {

struct ConflictSide {
  bool is_known = false;
  // A round.
  wire::RoundOperation operation{};
  Rank root{};                  // of kAssign, numbered over the whole job
  numeric::ElementType type{};  // the payload has it
  HyperVersion version{};
  // The hyper-parameters of that version. Another rack's ranks sent only their hash, and control
  // asks that rack for the values (racks/rack_conflicts.h).
  bool has_values = false;
  wire::HyperParameters values{};
  std::uint64_t values_hash = 0;  // only if the ranks are those of a rack
  wire::PoolRound pool{};         // kPool
  // A decision about an iteration.
  bool skips = false;
  double scale = 1.0;
};

struct Conflict {
  ConflictSide source;  // what the event's source sent
  ConflictSide other;   // what its other rank or rack sent
};

}  // namespace phub::server
