// The numbers of groups' keys, for daemons and workers.
#pragma once

#include <cstdint>

#include "common/base/ids.h"

namespace phub {

// Keys of the whole job have the numbers below, so that they stay dense. As many keys of groups
// have the numbers from here on.
inline constexpr std::uint32_t kGroupKeysFirst = kKeysPerJobMax;

}  // namespace phub
