// The ranks of this rack that push a key. Most keys belong to every rank of the job: then there is
// no table, and a rank's index is its number. The keys of a group belong to some ranks only. Sums
// go in the order of indices, which is ascending by rank.
//
// Made by control, which keeps it as long as the core loops have keys of the group. Immutable.
#pragma once

#include <algorithm>
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
  // REQUIRES: ascending ranks. in_job: all members, numbered in the job, ascending; those of other
  // racks are in no other way known here. Empty: `ranks` are all, and the job has one rack.
  explicit Members(std::span<const Rank> ranks, std::span<const Rank> in_job = {})
      : ranks_(ranks.begin(), ranks.end()), in_job_(in_job.begin(), in_job.end()) {
    if (in_job_.empty()) in_job_ = ranks_;
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
  // Whether this rank of the job is a member, here or in another rack.
  bool HasInJob(Rank rank_of_job) const { return std::ranges::binary_search(in_job_, rank_of_job); }

 private:
  std::vector<Rank> ranks_;
  std::vector<Rank> in_job_;
  std::vector<std::uint32_t> index_of_;  // [rank]
};

}  // namespace phub::server
