#include "client/cli/stall_list.h"

#include <algorithm>

namespace phub::client::cli {
namespace {

bool IsSameRound(const v1::Stall& one, const v1::Stall& other) {
  return one.key() == other.key() && one.iteration() == other.iteration() &&
         one.waits_for_racks() == other.waits_for_racks();
}

template <typename Ranks>
void MergeRanks(const Ranks& part, Ranks& all) {
  for (const v1::StalledRank& rank : part) {
    const auto is_it = [&](const v1::StalledRank& each) { return each.rank() == rank.rank(); };
    if (std::ranges::none_of(all, is_it)) *all.Add() = rank;
  }
}

}  // namespace

void MergeStalls(const v1::ListStallsResponse& part, v1::ListStallsResponse& all) {
  for (const v1::Stall& stall : part.stalls()) {
    const auto known = std::ranges::find_if(
        *all.mutable_stalls(), [&](const v1::Stall& each) { return IsSameRound(each, stall); });
    if (known == all.mutable_stalls()->end()) {
      *all.add_stalls() = stall;
      continue;
    }
    known->set_chunks_waiting(known->chunks_waiting() + stall.chunks_waiting());
    known->set_since_ns(std::max(known->since_ns(), stall.since_ns()));
    MergeRanks(stall.waiting_for(), *known->mutable_waiting_for());
  }
  MergeRanks(part.lost_elsewhere(), *all.mutable_lost_elsewhere());
  if (part.has_barrier()) *all.mutable_barrier() = part.barrier();
  std::stable_sort(all.mutable_stalls()->begin(), all.mutable_stalls()->end(),
                   [](const v1::Stall& one, const v1::Stall& other) {
                     return one.since_ns() > other.since_ns();
                   });
}

}  // namespace phub::client::cli
