// How much of each group passes over each spine, and what is left of each cable. Part of
// spine_shares.h. One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "common/plan/groups/spine_shares.h"

namespace phub::plan {

// The problem in integers: sizes and capacities are multiplied by a common factor, so that equal
// parts of groups are integers, too.
struct ShareProblem {
  std::size_t spines = 0;
  std::vector<std::vector<std::uint32_t>> leaves;  // by group
  std::vector<std::int64_t> need;                  // by group
  std::vector<std::vector<std::int64_t>> room;     // by leaf and spine
  std::vector<std::int64_t> weight;                // by spine: its part of every leaf's capacity
};

class ShareTable {
 public:
  explicit ShareTable(const ShareProblem& problem)
      : problem_(&problem),
        left_(problem.room),
        amount_(problem.need.size(), std::vector<std::int64_t>(problem.spines, 0)) {}

  void Add(std::size_t group, std::size_t spine, std::int64_t amount) {
    amount_[group][spine] += amount;
    for (const std::uint32_t leaf : problem_->leaves[group]) left_[leaf][spine] -= amount;
  }

  std::int64_t AmountOf(std::size_t group, std::size_t spine) const {
    return amount_[group][spine];
  }
  // Negative if the cable has too much.
  std::int64_t LeftAt(std::uint32_t leaf, std::size_t spine) const { return left_[leaf][spine]; }

  // How much more of the group the spine can carry.
  std::int64_t LeftFor(std::size_t group, std::size_t spine) const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const std::uint32_t leaf : problem_->leaves[group])
      least = std::min(least, left_[leaf][spine]);
    return least;
  }

  bool IsWithinRoom() const {
    for (const auto& row : left_)
      if (std::any_of(row.begin(), row.end(), [](std::int64_t left) { return left < 0; }))
        return false;
    return true;
  }

  std::int64_t Pairs() const {
    std::int64_t pairs = 0;
    for (std::size_t group = 0; group < amount_.size(); ++group) {
      const auto used =
          amount_[group].size() -
          static_cast<std::size_t>(std::count(amount_[group].begin(), amount_[group].end(), 0));
      pairs += static_cast<std::int64_t>(used * problem_->leaves[group].size());
    }
    return pairs;
  }

  const ShareProblem& problem() const { return *problem_; }

 private:
  const ShareProblem* problem_;
  std::vector<std::vector<std::int64_t>> left_;    // by leaf and spine
  std::vector<std::vector<std::int64_t>> amount_;  // by group and spine
};

}  // namespace phub::plan
