// Groups of a job that are declared with one call (client/include/phub/group.h).
#pragma once

#include <cstddef>

namespace phub {

// A daemon plans them in one piece of work, which delays that of other jobs.
inline constexpr std::size_t kDeclaredGroupsMax = 64;

}  // namespace phub
