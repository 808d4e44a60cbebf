#include "common/plan/flow.h"

#include <algorithm>

namespace phub::plan {

std::uint32_t FlowNetwork::AddNode() {
  adjacent_.emplace_back();
  return static_cast<std::uint32_t>(adjacent_.size() - 1);
}

std::uint32_t FlowNetwork::AddEdge(std::uint32_t from, std::uint32_t to, std::int64_t capacity) {
  const auto edge = static_cast<std::uint32_t>(capacity_.size());
  capacity_.push_back(capacity);
  adjacent_[from].push_back(2 * edge);
  adjacent_[to].push_back(2 * edge + 1);
  target_.push_back(to);
  target_.push_back(from);
  return edge;
}

void FlowNetwork::ReturnTo(Mark mark) {
  while (capacity_.size() > mark.edges) {
    const auto edge = static_cast<std::uint32_t>(capacity_.size() - 1);
    // Arcs are appended in order: the arcs of the last edge are the last ones of their nodes.
    adjacent_[target_[2 * edge]].pop_back();
    adjacent_[target_[2 * edge + 1]].pop_back();
    target_.resize(2 * edge);
    capacity_.pop_back();
  }
  adjacent_.resize(mark.nodes);
}

bool FlowNetwork::BuildLevels(std::uint32_t source, std::uint32_t sink) {
  level_.assign(adjacent_.size(), kUnreached);
  level_[source] = 0;
  queue_.assign(1, source);
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const std::uint32_t node = queue_[head];
    if (node == sink) return true;
    for (const std::uint32_t arc : adjacent_[node]) {
      if (residual_[arc] == 0 || level_[target_[arc]] != kUnreached) continue;
      level_[target_[arc]] = level_[node] + 1;
      queue_.push_back(target_[arc]);
    }
  }
  return false;
}

// Depth-first search along the levels with a stack of arcs. A node without remaining arcs is not
// entered again.
std::int64_t FlowNetwork::Augment(std::uint32_t source, std::uint32_t sink, std::int64_t limit) {
  std::int64_t total = 0;
  next_.assign(adjacent_.size(), 0);
  path_.clear();
  for (std::uint32_t node = source; total < limit;) {
    if (node == sink) {
      std::int64_t amount = limit - total;
      for (const std::uint32_t arc : path_) amount = std::min(amount, residual_[arc]);
      total += amount;
      std::size_t first_full = path_.size();
      for (std::size_t i = path_.size(); i-- > 0;) {
        residual_[path_[i]] -= amount;
        residual_[path_[i] ^ 1u] += amount;
        if (residual_[path_[i]] == 0) first_full = i;
      }
      if (first_full == path_.size()) break;  // the limit is reached
      node = target_[path_[first_full] ^ 1u];
      path_.resize(first_full);
      continue;
    }
    std::uint32_t& i = next_[node];
    while (i < adjacent_[node].size() && (residual_[adjacent_[node][i]] == 0 ||
                                          level_[target_[adjacent_[node][i]]] != level_[node] + 1))
      ++i;
    if (i < adjacent_[node].size()) {
      path_.push_back(adjacent_[node][i]);
      node = target_[path_.back()];
    } else if (path_.empty()) {
      break;
    } else {
      level_[node] = kUnreached;
      node = target_[path_.back() ^ 1u];
      path_.pop_back();
      ++next_[node];
    }
  }
  return total;
}

std::int64_t FlowNetwork::Solve(std::uint32_t source, std::uint32_t sink, std::int64_t limit) {
  residual_.resize(2 * capacity_.size());
  for (std::size_t edge = 0; edge < capacity_.size(); ++edge) {
    residual_[2 * edge] = capacity_[edge];
    residual_[2 * edge + 1] = 0;
  }
  std::int64_t total = 0;
  while (total < limit && BuildLevels(source, sink)) total += Augment(source, sink, limit - total);
  return total;
}

}  // namespace phub::plan
