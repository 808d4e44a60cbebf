#include "common/plan/groups/pairs_bound.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace phub::plan {
namespace {

constexpr std::int64_t kLeafItemsMax = 256;
constexpr std::uint64_t kUndividedWorkMax = std::uint64_t{1} << 26;
constexpr std::size_t kDeterminedGroupsMax = 512;

std::int64_t LeafCount(const ShareProblem& problem, std::size_t group) {
  return static_cast<std::int64_t>(problem.leaves[group].size());
}

// The fewest pieces of `items` items of size `need`, packed into `bins` bins with `room` each, more
// than one for each item. A connected part with i items and b bins has at least i + b - 1 pieces.
std::int64_t ExtraPieces(std::int64_t items, std::int64_t bins, std::int64_t need,
                         std::int64_t room) {
  constexpr std::int64_t kImpossible = std::int64_t{1} << 40;
  const auto width = static_cast<std::size_t>(bins) + 1;
  // [items placed][bins used] -> fewest extra pieces
  std::vector<std::vector<std::int64_t>> fewest(static_cast<std::size_t>(items) + 1,
                                                std::vector<std::int64_t>(width, kImpossible));
  fewest[0].assign(width, 0);
  for (std::size_t placed = 1; placed < fewest.size(); ++placed) {
    for (std::size_t part = 1; part <= placed; ++part) {
      const auto sum = static_cast<Wide>(part) * need;
      const auto part_bins = static_cast<std::size_t>((sum + room - 1) / room);
      for (std::size_t used = part_bins; used < width; ++used)
        fewest[placed][used] =
            std::min(fewest[placed][used], fewest[placed - part][used - part_bins] +
                                               static_cast<std::int64_t>(part_bins) - 1);
    }
  }
  const std::int64_t extra = fewest.back().back();
  return extra >= kImpossible ? 0 : extra;
}

// By leaf: the fewest pairs, by packing the leaf's groups into its cables.
std::vector<std::int64_t> LeastByLeaf(const ShareProblem& problem) {
  std::vector<std::int64_t> least(problem.room.size(), 0);
  for (const auto& leaves : problem.leaves)
    for (const std::uint32_t leaf : leaves) ++least[leaf];
  const auto is_uniform = [](const std::vector<std::int64_t>& values) {
    return std::equal(values.begin() + 1, values.end(), values.begin());
  };
  if (problem.need.empty() || !is_uniform(problem.need)) return least;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> known;  // items, room -> extra
  for (std::uint32_t leaf = 0; leaf < problem.room.size(); ++leaf) {
    const std::int64_t items = least[leaf];
    if (items == 0 || items > kLeafItemsMax || !is_uniform(problem.room[leaf])) continue;
    const auto [extra, is_new] = known.try_emplace({items, problem.room[leaf].front()}, 0);
    if (is_new)
      extra->second = ExtraPieces(items, static_cast<std::int64_t>(problem.spines),
                                  problem.need.front(), problem.room[leaf].front());
    least[leaf] += extra->second;
  }
  return least;
}

using Row = std::vector<std::int64_t>;

// row -= pivot, scaled so that the column becomes 0. False if a number exceeds 63 bits.
bool Eliminate(Row& row, const Row& pivot, std::size_t column) {
  const std::int64_t common = std::gcd(row[column], pivot[column]);
  const std::int64_t scale = pivot[column] / common, times = row[column] / common;
  std::int64_t divisor = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    std::int64_t scaled = 0, taken = 0;
    if (__builtin_mul_overflow(row[i], scale, &scaled) ||
        __builtin_mul_overflow(pivot[i], times, &taken) ||
        __builtin_sub_overflow(scaled, taken, &row[i]))
      return false;
    divisor = std::gcd(divisor, row[i]);
  }
  if (divisor > 1)
    for (std::int64_t& value : row) value /= divisor;
  return true;
}

// By group: whether the equations of leaves without room determine its share on every spine. Row
// operations of Gauss and Jordan leave such a group alone in a row.
std::vector<bool> DeterminedGroups(const ShareProblem& problem) {
  const std::size_t groups = problem.need.size();
  std::vector<bool> determined(groups, false);
  if (groups > kDeterminedGroupsMax) return determined;
  std::vector<Row> rows;
  for (std::uint32_t leaf = 0; leaf < problem.room.size(); ++leaf) {
    Row row(groups, 0);
    std::int64_t left =
        std::accumulate(problem.room[leaf].begin(), problem.room[leaf].end(), std::int64_t{0});
    for (std::size_t group = 0; group < groups; ++group) {
      const auto& leaves = problem.leaves[group];
      if (!std::binary_search(leaves.begin(), leaves.end(), leaf)) continue;
      row[group] = 1;
      left -= problem.need[group];
    }
    if (left == 0) rows.push_back(std::move(row));
  }
  std::size_t rank = 0;
  for (std::size_t column = 0; column < groups && rank < rows.size(); ++column) {
    const auto pivot = std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(rank), rows.end(),
                                    [&](const Row& row) { return row[column] != 0; });
    if (pivot == rows.end()) continue;
    std::swap(*pivot, rows[rank]);
    for (std::size_t other = 0; other < rows.size(); ++other)
      if (other != rank && rows[other][column] != 0 && !Eliminate(rows[other], rows[rank], column))
        return determined;
    ++rank;
  }
  for (const Row& row : rows) {
    const auto is_used = [](std::int64_t value) { return value != 0; };
    const auto first = std::find_if(row.begin(), row.end(), is_used);
    if (first != row.end() && std::none_of(first + 1, row.end(), is_used))
      determined[static_cast<std::size_t>(first - row.begin())] = true;
  }
  return determined;
}

// The most pairs that groups save which have one spine instead of two.
class UndividedSearch {
 public:
  UndividedSearch(const ShareProblem& problem, const std::vector<bool>& excluded)
      : problem_(problem),
        table_(problem),
        is_placed_(problem.need.size(), false),
        users_(problem.spines, 0) {
    for (std::size_t group = 0; group < excluded.size(); ++group)
      if (!excluded[group]) order_.push_back(group);
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      return LeafCount(problem_, a) > LeafCount(problem_, b);
    });
    rest_.assign(order_.size() + 1, 0);
    for (std::size_t i = order_.size(); i-- > 0;)
      rest_[i] = rest_[i + 1] + LeafCount(problem_, order_[i]);
  }

  // nullopt: the search was cut short.
  std::optional<std::int64_t> Run() {
    Decide(0, 0);
    if (work_ > kUndividedWorkMax) return std::nullopt;
    return most_;
  }

 private:
  void Decide(std::size_t place, std::int64_t saved) {
    most_ = std::max(most_, saved);
    if (saved + rest_[place] <= most_ || work_ > kUndividedWorkMax) return;
    const std::size_t group = order_[place];
    bool tried_unused = false;
    is_placed_[group] = true;
    for (std::size_t spine = 0; spine < problem_.spines; ++spine) {
      if (table_.LeftFor(group, spine) < problem_.need[group]) continue;
      // Unused spines of equal capacity are interchangeable.
      if (users_[spine] == 0 && problem_.weight[spine] == problem_.weight.front()) {
        if (std::exchange(tried_unused, true)) continue;
      }
      table_.Add(group, spine, problem_.need[group]);
      ++users_[spine];
      if (CanFit()) Decide(place + 1, saved + LeafCount(problem_, group));
      table_.Add(group, spine, -problem_.need[group]);
      --users_[spine];
    }
    is_placed_[group] = false;
    Decide(place + 1, saved);
  }

  // Whether each leaf's cables can take its groups. A group that is not placed may use a spine as
  // far as all of its leaves have room there.
  bool CanFit() {
    const std::size_t leaves = problem_.room.size();
    std::vector<std::int64_t> need(leaves, 0), possible(leaves, 0), on_spine(leaves);
    for (std::size_t group = 0; group < problem_.need.size(); ++group)
      if (!is_placed_[group])
        for (const std::uint32_t leaf : problem_.leaves[group]) need[leaf] += problem_.need[group];
    for (std::size_t spine = 0; spine < problem_.spines; ++spine) {
      std::fill(on_spine.begin(), on_spine.end(), 0);
      for (std::size_t group = 0; group < problem_.need.size(); ++group) {
        work_ += 2 * problem_.leaves[group].size();
        if (is_placed_[group]) continue;
        const std::int64_t most = std::min(table_.LeftFor(group, spine), problem_.need[group]);
        for (const std::uint32_t leaf : problem_.leaves[group]) on_spine[leaf] += most;
      }
      for (std::uint32_t leaf = 0; leaf < leaves; ++leaf)
        possible[leaf] += std::min(on_spine[leaf], table_.LeftAt(leaf, spine));
    }
    return std::equal(need.begin(), need.end(), possible.begin(), std::less_equal<>());
  }

  const ShareProblem& problem_;
  ShareTable table_;
  std::vector<bool> is_placed_;       // by group
  std::vector<std::uint32_t> users_;  // by spine
  std::vector<std::size_t> order_;
  std::vector<std::int64_t> rest_;  // by place in order_: what the rest could save at most
  std::int64_t most_ = 0;
  std::uint64_t work_ = 0;
};

}  // namespace

std::int64_t LeastPairs(const ShareProblem& problem) {
  const std::vector<std::int64_t> least = LeastByLeaf(problem);
  return std::accumulate(least.begin(), least.end(), std::int64_t{0});
}

std::int64_t LeastDividedPairs(const ShareProblem& problem) {
  const std::vector<bool> determined = DeterminedGroups(problem);
  std::vector<std::int64_t> by_group(problem.room.size(), 0);  // by leaf, from the groups' spines
  std::int64_t if_divided = 0;
  for (std::size_t group = 0; group < problem.need.size(); ++group) {
    const std::int64_t all = static_cast<std::int64_t>(problem.spines);
    for (const std::uint32_t leaf : problem.leaves[group])
      by_group[leaf] += determined[group] ? all : 1;
    if_divided += LeafCount(problem, group) * (determined[group] ? all : 2);
  }
  const std::vector<std::int64_t> by_leaf = LeastByLeaf(problem);
  std::int64_t least = 0;
  for (std::size_t leaf = 0; leaf < by_leaf.size(); ++leaf)
    least += std::max(by_leaf[leaf], by_group[leaf]);
  if (problem.spines < 2) return least;
  const std::optional<std::int64_t> saved = UndividedSearch(problem, determined).Run();
  return saved ? std::max(least, if_divided - *saved) : least;
}

}  // namespace phub::plan
