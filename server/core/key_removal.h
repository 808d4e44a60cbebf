// Collective keys that every rank has asked to remove: the last ones of the whole job, so that
// their numbers stay dense, or all keys of a group, whose members have asked. Control creates it
// (control/keys/key_removals.h), and a core loop uses it (key_remover.h) until it has reported
// kKeysRemoved or the end of the job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace phub::server {

class Members;

struct KeyRemoval {
  std::uint32_t first_key = 0;     // this key of the whole job and all later ones
  const Members* group = nullptr;  // or all keys of this group
  // [rank]: memory of the keys from which the rank could push in place, in the order of addresses.
  std::vector<std::vector<std::span<const std::byte>>> shared;
};

}  // namespace phub::server
