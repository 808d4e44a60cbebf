// The ranks that push a key. Most keys belong to every rank of the job: then there is no table, and
// a rank's index is its number. The keys of a group belong to some ranks only. Sums go in the order
// of indices, which is ascending by rank.
//
// Made by control, which keeps it as long as the core loops have keys of the group. Immutable.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/base/ids.h"

namespace phub::server {

inline constexpr std::uint32_t kNoMember = UINT32_MAX;

class Members {
 public:
  Members() = default;  // no rank at all
  // REQUIRES: ascending ranks.
  explicit Members(std::span<const Rank> ranks) : ranks_(ranks.begin(), ranks.end()) {
    for (std::uint32_t index = 0; index < ranks_.size(); ++index) {
      const std::uint32_t rank = ranks_[index].value;
      PHUB_CHECK(rank >= index_of_.size() && rank < kRanksMax, "rank={}", rank);
      index_of_.resize(rank, kNoMember);
      index_of_.push_back(index);
    }
  }

  std::uint32_t count() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::span<const Rank> ranks() const { return ranks_; }
  Rank RankOf(std::uint32_t index) const { return ranks_[index]; }
  // kNoMember: the rank is not a member.
  std::uint32_t IndexOf(Rank rank) const {
    return rank.value < index_of_.size() ? index_of_[rank.value] : kNoMember;
  }

 private:
  std::vector<Rank> ranks_;
  std::vector<std::uint32_t> index_of_;  // [rank]
};

}  // namespace phub::server
