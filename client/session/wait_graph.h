// Why a rank waits in a round or a barrier, from a daemon's list of what waits for ranks: for whom,
// and whether ranks wait for each other in a cycle. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "phub/v1/admin.pb.h"

namespace phub::client {

// "it waits for rank 1; ranks wait for each other: rank 0 has pushed key x/0 of group x (operation
// 4), which waits for rank 1; rank 1 has pushed key y/0 of group y (operation 7), which waits for
// rank 0". Empty: no round of the key waits for a rank.
std::string DescribeWait(const v1::ListStallsResponse& stalls, std::string_view key,
                         std::uint32_t rank);
// The same for the barrier that `rank` waits in. Empty: it waits in none.
std::string DescribeBarrierWait(const v1::ListStallsResponse& stalls, std::uint32_t rank);

}  // namespace phub::client
