#include "common/plan/groups/share_search.h"

#include <array>
#include <random>

namespace phub::plan {
namespace {

constexpr std::uint64_t kSingleWorkMax = std::uint64_t{1} << 27;
constexpr std::uint64_t kDividedWorkMax = std::uint64_t{1} << 27;
constexpr std::uint32_t kDividedStarts = 24;
// A table is rebuilt until this many attempts for each pair of a group and a spine were in vain.
constexpr std::size_t kRebuildsInVain = 64;
constexpr int kBalancingRounds = 12;

class SingleSpineSearch {
 public:
  explicit SingleSpineSearch(const ShareProblem& problem)
      : problem_(problem),
        table_(problem),
        is_placed_(problem.need.size(), false),
        users_(problem.spines, 0) {}

  SingleSpines Run() {
    const bool found = Place(0);
    SingleSpines result;
    result.is_proven = found || work_ <= kSingleWorkMax;
    if (found) result.table = std::move(table_);
    return result;
  }

 private:
  bool Place(std::size_t placed) {
    if (placed == problem_.need.size()) return true;
    const std::size_t group = MostConstrained();
    if (work_ > kSingleWorkMax) return false;
    is_placed_[group] = true;
    bool tried_unused = false;
    for (std::size_t spine = 0; spine < problem_.spines; ++spine) {
      if (table_.LeftFor(group, spine) < problem_.need[group]) continue;
      // Unused spines of equal capacity are interchangeable.
      if (users_[spine] == 0 && AreSpinesEqual()) {
        if (tried_unused) continue;
        tried_unused = true;
      }
      table_.Add(group, spine, problem_.need[group]);
      ++users_[spine];
      if (Place(placed + 1)) return true;
      table_.Add(group, spine, -problem_.need[group]);
      --users_[spine];
      if (work_ > kSingleWorkMax) break;
    }
    is_placed_[group] = false;
    return false;
  }

  // The group that fits on the fewest spines. If several do, the one with the most leaves.
  std::size_t MostConstrained() {
    std::size_t best = 0, best_fits = problem_.spines + 1;
    for (std::size_t group = 0; group < problem_.need.size(); ++group) {
      if (is_placed_[group]) continue;
      std::size_t fits = 0;
      for (std::size_t spine = 0; spine < problem_.spines && fits < best_fits; ++spine) {
        if (table_.LeftFor(group, spine) >= problem_.need[group]) ++fits;
        work_ += problem_.leaves[group].size();
      }
      if (fits < best_fits ||
          (fits == best_fits && problem_.leaves[group].size() > problem_.leaves[best].size())) {
        best = group;
        best_fits = fits;
      }
    }
    return best;
  }

  bool AreSpinesEqual() const {
    return std::equal(problem_.weight.begin() + 1, problem_.weight.end(), problem_.weight.begin());
  }

  const ShareProblem& problem_;
  ShareTable table_;
  std::vector<bool> is_placed_;       // by group
  std::vector<std::uint32_t> users_;  // by spine
  std::uint64_t work_ = 0;
};

// One spine for each group: the first with room. Regular placements, however large, need no more.
std::optional<ShareTable> FirstFit(const ShareProblem& problem,
                                   const std::vector<std::size_t>& order) {
  ShareTable table(problem);
  for (const std::size_t group : order) {
    std::size_t spine = 0;
    while (spine < problem.spines && table.LeftFor(group, spine) < problem.need[group]) ++spine;
    if (spine == problem.spines) return std::nullopt;
    table.Add(group, spine, problem.need[group]);
  }
  return table;
}

// Random starts of several kinds. Each table within the room is thinned, and then rebuilt in parts.
class DividedSearch {
 public:
  DividedSearch(const ShareProblem& problem, std::int64_t pairs_least)
      : problem_(problem), pairs_least_(pairs_least), best_(Spread()), order_(problem.need.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    Thin(best_);
  }

  ShareTable Run() {
    Rebuild(best_);
    const auto spines = static_cast<std::int64_t>(problem_.spines);
    const std::array<std::int64_t, 4> parts = {2, 3, 4, spines};
    for (std::uint32_t start = 0; start < kDividedStarts && !IsDone(); ++start) {
      order_.resize(problem_.need.size());
      std::iota(order_.begin(), order_.end(), std::size_t{0});
      Shuffle();
      Consider(start % 3 == 0 ? Filled() : Balanced(parts[start % parts.size()]));
    }
    return std::move(best_);
  }

 private:
  bool IsDone() const { return best_.Pairs() <= pairs_least_ || work_ > kDividedWorkMax; }

  void Shuffle() {
    for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_() % i]);
  }

  void Consider(std::optional<ShareTable> table) {
    if (!table || !table->IsWithinRoom()) return;
    Thin(*table);
    Rebuild(*std::move(table));
  }

  // Takes a few groups out and puts them back in another order, again and again. A table with as
  // many pairs as before is accepted, too.
  void Rebuild(ShareTable table) {
    std::int64_t pairs = table.Pairs(), least = pairs;
    if (pairs < best_.Pairs()) best_ = table;
    const std::size_t groups = problem_.need.size();
    const std::size_t in_vain_max = kRebuildsInVain * groups * problem_.spines;
    for (std::size_t in_vain = 0; in_vain < in_vain_max && !IsDone(); ++in_vain) {
      order_.clear();
      for (std::size_t count = 2 + random_() % 4; count > 0; --count)
        order_.push_back(random_() % groups);
      ShareTable next = table;
      for (const std::size_t group : order_) TakeOut(next, group);
      std::sort(order_.begin(), order_.end());
      order_.erase(std::unique(order_.begin(), order_.end()), order_.end());
      Shuffle();
      work_ += (groups + problem_.room.size()) * problem_.spines;
      if (!Fill(next) || next.Pairs() > pairs) continue;
      table = std::move(next);
      pairs = table.Pairs();
      if (pairs < best_.Pairs()) best_ = table;
      if (pairs >= least) continue;
      least = pairs;
      in_vain = 0;
    }
  }

  void TakeOut(ShareTable& table, std::size_t group) const {
    for (std::size_t spine = 0; spine < problem_.spines; ++spine)
      if (const std::int64_t amount = table.AmountOf(group, spine); amount > 0)
        table.Add(group, spine, -amount);
  }

  // Every group on all spines.
  ShareTable Spread() const {
    ShareTable table(problem_);
    const std::int64_t whole =
        std::accumulate(problem_.weight.begin(), problem_.weight.end(), std::int64_t{0});
    for (std::size_t group = 0; group < problem_.need.size(); ++group)
      for (std::size_t spine = 0; spine < problem_.spines; ++spine)
        table.Add(group, spine, problem_.need[group] / whole * problem_.weight[spine]);
    return table;
  }

  // One group after the other: on the spine that it fills best, or else in the largest parts.
  std::optional<ShareTable> Filled() {
    ShareTable table(problem_);
    if (!Fill(table)) return std::nullopt;
    return table;
  }

  // Adds the groups of order_. Returns false if there is no room.
  bool Fill(ShareTable& table) {
    for (const std::size_t group : order_) {
      std::int64_t need = problem_.need[group];
      while (need > 0) {
        std::size_t best = 0;
        std::int64_t best_left = 0;
        for (std::size_t spine = 0; spine < problem_.spines; ++spine) {
          const std::int64_t left = table.LeftFor(group, spine);
          work_ += problem_.leaves[group].size();
          const bool is_better =
              best_left >= need ? left >= need && left < best_left : left > best_left;
          if (is_better) {
            best = spine;
            best_left = left;
          }
        }
        if (best_left <= 0) return false;
        const std::int64_t part = std::min(need, best_left);
        table.Add(group, best, part);
        need -= part;
      }
    }
    return true;
  }

  // Equal parts of groups, moved one by one to the spine where they load cables least.
  std::optional<ShareTable> Balanced(std::int64_t parts) {
    for (const std::int64_t need : problem_.need)
      if (need % parts != 0) return std::nullopt;
    ShareTable table(problem_);
    std::vector<std::size_t> spine_of(order_.size() * static_cast<std::size_t>(parts), kNowhere);
    for (int round = 0; round < kBalancingRounds; ++round) {
      bool has_moved = false;
      for (std::size_t i = 0; i < spine_of.size(); ++i) {
        const std::size_t group = order_[i % order_.size()];
        const std::int64_t part = problem_.need[group] / parts;
        const std::size_t before = spine_of[i];
        if (before != kNowhere) table.Add(group, before, -part);
        spine_of[i] = LeastLoaded(table, group, part, before);
        table.Add(group, spine_of[i], part);
        has_moved |= spine_of[i] != before;
      }
      if (table.IsWithinRoom()) return table;
      if (!has_moved || work_ > kDividedWorkMax) break;
    }
    return std::nullopt;
  }

  std::size_t LeastLoaded(const ShareTable& table, std::size_t group, std::int64_t part,
                          std::size_t before) {
    std::size_t best = before;
    double best_most = std::numeric_limits<double>::infinity(), best_sum = best_most;
    for (std::size_t offset = 0; offset < problem_.spines; ++offset) {
      const std::size_t spine = (offset + (before == kNowhere ? 0 : before)) % problem_.spines;
      double most = 0, sum = 0;
      for (const std::uint32_t leaf : problem_.leaves[group]) {
        const auto room = static_cast<double>(problem_.room[leaf][spine]);
        const double load = (room - static_cast<double>(table.LeftAt(leaf, spine) - part)) / room;
        most = std::max(most, load);
        sum += load * load;
      }
      work_ += problem_.leaves[group].size();
      // On a spine that the group already uses, a part costs no pair.
      if (table.AmountOf(group, spine) > 0) sum *= 0.999;
      if (most > best_most || (most == best_most && sum >= best_sum)) continue;
      best = spine;
      best_most = most;
      best_sum = sum;
    }
    return best;
  }

  // Moves a group's parts to other spines that it uses, small parts first, while there is room.
  void Thin(ShareTable& table) {
    for (const std::size_t group : order_) {
      std::vector<std::size_t> used;
      for (std::size_t spine = 0; spine < problem_.spines; ++spine)
        if (table.AmountOf(group, spine) > 0) used.push_back(spine);
      std::stable_sort(used.begin(), used.end(), [&](std::size_t a, std::size_t b) {
        return table.AmountOf(group, a) < table.AmountOf(group, b);
      });
      for (const std::size_t spine : used) Empty(table, group, spine, used);
    }
  }

  void Empty(ShareTable& table, std::size_t group, std::size_t spine,
             const std::vector<std::size_t>& used) {
    const std::int64_t amount = table.AmountOf(group, spine);
    std::int64_t left = 0;
    for (const std::size_t other : used) {
      work_ += problem_.leaves[group].size();
      if (other == spine || table.AmountOf(group, other) == 0) continue;
      left += std::min(table.LeftFor(group, other), amount);
      if (left >= amount) break;
    }
    if (left < amount) return;
    std::int64_t rest = amount;
    for (std::size_t i = used.size(); i-- > 0 && rest > 0;) {
      if (used[i] == spine || table.AmountOf(group, used[i]) == 0) continue;
      const std::int64_t part = std::min(table.LeftFor(group, used[i]), rest);
      table.Add(group, used[i], part);
      rest -= part;
    }
    table.Add(group, spine, -amount);
  }

  static constexpr std::size_t kNowhere = ~std::size_t{0};

  const ShareProblem& problem_;
  const std::int64_t pairs_least_;
  ShareTable best_;
  std::vector<std::size_t> order_;
  std::mt19937_64 random_{1};
  std::uint64_t work_ = 0;
};

}  // namespace

SingleSpines SearchSingleSpines(const ShareProblem& problem) {
  std::vector<std::size_t> order(problem.need.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (auto table = FirstFit(problem, order)) return {std::move(table), true};
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return problem.leaves[a].size() > problem.leaves[b].size();
  });
  if (auto table = FirstFit(problem, order)) return {std::move(table), true};
  return SingleSpineSearch(problem).Run();
}

ShareTable SearchDividedShares(const ShareProblem& problem, std::int64_t pairs_least) {
  return DividedSearch(problem, pairs_least).Run();
}

}  // namespace phub::plan
