#include "common/plan/planners/ring_order.h"

#include <algorithm>
#include <optional>

#include "common/base/random.h"
#include "common/plan/planners/rank_forest.h"
#include "common/plan/routes.h"

namespace phub::plan {
namespace {

using Ranks = std::vector<std::uint32_t>;

// Both directions together: reversing a part of the ring does not change its length inside.
class Distances {
 public:
  explicit Distances(const Topology& topology) : count_(topology.members().size()) {
    Router router(topology);
    table_.resize(count_ * count_, 0);
    for (std::size_t i = 0; i < count_; ++i)
      for (std::size_t j = 0; j < count_; ++j)
        if (i != j) {
          const auto distance = router.Distance(topology.members()[i], topology.members()[j]);
          table_[i * count_ + j] += distance.value_or(1'000'000);
          table_[j * count_ + i] += distance.value_or(1'000'000);
        }
  }
  std::size_t count() const { return count_; }
  std::uint32_t operator()(std::uint32_t i, std::uint32_t j) const {
    return table_[i * count_ + j];
  }
  std::uint64_t Length(const Ranks& circle) const {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < circle.size(); ++i)
      length += (*this)(circle[i], circle[(i + 1) % circle.size()]);
    return length;
  }

 private:
  std::size_t count_;
  std::vector<std::uint32_t> table_;
};

Ranks NearestNeighbourCircle(const Distances& distances) {
  Ranks circle{0};
  std::vector<bool> used(distances.count(), false);
  used[0] = true;
  while (circle.size() < distances.count()) {
    std::uint32_t best = 0;
    bool found = false;
    for (std::uint32_t next = 0; next < distances.count(); ++next) {
      if (used[next]) continue;
      if (found && distances(circle.back(), next) >= distances(circle.back(), best)) continue;
      best = next;
      found = true;
    }
    used[best] = true;
    circle.push_back(best);
  }
  return circle;
}

// 2-opt: reverses parts of the ring while that makes it shorter. It terminates because lengths are
// integers and strictly decrease.
void TwoOptCircle(const Distances& distances, Ranks& circle) {
  const std::size_t count = circle.size();
  for (bool improved = true; improved;) {
    improved = false;
    for (std::size_t i = 0; i + 2 < count; ++i) {
      for (std::size_t j = i + 2; j < count; ++j) {
        if (i == 0 && j + 1 == count) continue;
        const std::uint32_t a = circle[i], b = circle[i + 1];
        const std::uint32_t c = circle[j], d = circle[(j + 1) % count];
        if (distances(a, c) + distances(b, d) >= distances(a, b) + distances(c, d)) continue;
        std::reverse(circle.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                     circle.begin() + static_cast<std::ptrdiff_t>(j) + 1);
        improved = true;
      }
    }
  }
}

class NeighbourCircle {
 public:
  NeighbourCircle(const Distances& distances, std::uint64_t seed) : random_(seed) {
    neighbours_.resize(distances.count());
    for (std::uint32_t i = 0; i < distances.count(); ++i)
      for (std::uint32_t j = 0; j < distances.count(); ++j)
        if (i != j && distances(i, j) == 2) neighbours_[i].push_back(j);
  }

  std::optional<Ranks> Find() {
    constexpr int kStarts = 200;
    for (const Ranks& list : neighbours_)
      if (list.size() < 2) return std::nullopt;
    for (int start = 0; start < kStarts; ++start) {
      steps_left_ = 20 * neighbours_.size();
      circle_.assign(1, 0);
      used_.assign(neighbours_.size(), false);
      used_[0] = true;
      if (Extend()) return circle_;
    }
    return std::nullopt;
  }

 private:
  std::size_t WaysLeft(std::uint32_t rank) const {
    return static_cast<std::size_t>(
        std::count_if(neighbours_[rank].begin(), neighbours_[rank].end(),
                      [&](std::uint32_t next) { return !used_[next]; }));
  }

  // The recursion depth is the number of members, at most kMembersMax.
  bool Extend() {
    if (circle_.size() == neighbours_.size())
      return std::count(neighbours_[circle_.back()].begin(), neighbours_[circle_.back()].end(),
                        0u) > 0;
    if (steps_left_ == 0) return false;
    --steps_left_;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> choices;  // unvisited, then random
    for (const std::uint32_t next : neighbours_[circle_.back()])
      if (!used_[next])
        choices.emplace_back((std::uint64_t{WaysLeft(next)} << 32) | (random_.Next() >> 32), next);
    std::sort(choices.begin(), choices.end());
    for (const auto& [key, next] : choices) {
      used_[next] = true;
      circle_.push_back(next);
      if (Extend()) return true;
      circle_.pop_back();
      used_[next] = false;
      if (steps_left_ == 0) return false;
    }
    return false;
  }

  SeededRandom random_;
  std::vector<Ranks> neighbours_;
  std::vector<bool> used_;
  Ranks circle_;
  std::size_t steps_left_ = 0;
};

}  // namespace

std::vector<NodeIndex> RingOrder(const Topology& topology, std::uint64_t seed) {
  const Distances distances(topology);
  Ranks best;
  for (std::uint32_t i = 0; i < distances.count(); ++i) best.push_back(i);
  const std::uint64_t shortest = 2 * distances.count();  // all neighbours one link away
  const auto keep_shorter = [&](const Ranks& circle) {
    if (distances.Length(circle) < distances.Length(best)) best = circle;
  };
  if (distances.Length(best) > shortest) {
    if (const auto circle = NeighbourCircle(distances, seed).Find()) keep_shorter(*circle);
  }
  if (distances.Length(best) > shortest) {
    Ranks circle = NearestNeighbourCircle(distances);
    TwoOptCircle(distances, circle);
    keep_shorter(circle);
  }
  std::vector<NodeIndex> order;
  for (const std::uint32_t rank : best) order.push_back(topology.members()[rank]);
  return order;
}

}  // namespace phub::plan
