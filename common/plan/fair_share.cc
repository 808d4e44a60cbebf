#include "common/plan/fair_share.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

namespace phub::plan {
namespace {

// Relative rounding error of sums of rates; smaller differences count as equal.
constexpr double kRounding = 1e-9;

}  // namespace

FairShare::FairShare(std::vector<double> link_bytes_per_s, const std::vector<Path>& paths)
    : capacity_(std::move(link_bytes_per_s)),
      path_start_(1, 0),
      uses_(capacity_.size()),
      load_(capacity_.size(), 0),
      touched_round_(capacity_.size(), 0),
      left_(capacity_.size(), 0),
      unfixed_(capacity_.size(), 0) {
  for (const Path& path : paths) {
    for (const LinkIndex link : path) path_links_.push_back(link.value);
    path_start_.push_back(path_links_.size());
    path_links_max_ = std::max(path_links_max_, path.size());
  }
}

FairShare::Flow FairShare::Add(PathIndex path, std::uint32_t weight) {
  if (free_flows_.empty()) {
    free_flows_.push_back(static_cast<Flow>(route_.size()));
    route_.emplace_back();
    rate_.push_back(0);
    place_.resize(route_.size() * path_links_max_);
    flow_round_.push_back(0);
    unfixed_fill_.push_back(0);
    new_rate_.push_back(0);
  }
  const Flow flow = free_flows_.back();
  free_flows_.pop_back();
  route_[flow] = {path.value, weight};
  rate_[flow] = 0;
  std::uint32_t hop = 0;
  for (const std::uint32_t link : LinksOf(flow)) {
    std::vector<Use>& uses = uses_[link];
    place_[flow * path_links_max_ + hop] = static_cast<std::uint32_t>(uses.size());
    uses.push_back({flow, hop++});
    dirty_.push_back(link);
  }
  return flow;
}

void FairShare::Remove(Flow flow) {
  std::uint32_t hop = 0;
  for (const std::uint32_t link : LinksOf(flow)) {
    std::vector<Use>& uses = uses_[link];
    const std::uint32_t place = place_[flow * path_links_max_ + hop++];
    uses[place] = uses.back();
    place_[uses[place].flow * path_links_max_ + uses[place].hop] = place;
    uses.pop_back();
    // A link that was not full did not limit its other flows.
    if (IsFull(link)) dirty_.push_back(link);
    load_[link] = uses.empty() ? 0 : load_[link] - rate_[flow] * route_[flow].weight;
  }
  rate_removed_least_ = std::min(rate_removed_least_, rate_[flow]);
  free_flows_.push_back(flow);
}

bool FairShare::IsFull(std::uint32_t link) const {
  return load_[link] >= capacity_[link] * (1 - kRounding);
}

std::span<const FairShare::Change> FairShare::Update() {
  changes_.clear();
  const double rate_removed_least = std::exchange(rate_removed_least_, kUnknown);
  if (dirty_.empty()) return changes_;
  ++round_;
  touched_links_.clear();
  touched_flows_.clear();
  passed_ = 0;
  CollectChanged(rate_removed_least);
  // Each restart costs a filling. After a few, collect more flows than necessary.
  constexpr int kNarrowTries = 3;
  for (int tries = 1;; ++tries) {
    CollectThroughFullLinks();
    Fill();
    if (!CollectAboveBottlenecks(tries >= kNarrowTries)) break;
  }
  Commit();
  dirty_.clear();
  return changes_;
}

// A lower bound for the rate that new flows get on a link: subtract the flows below that rate and
// divide the rest equally. Two rounds are accurate enough. kUnknown if the link has no new flow.
double FairShare::RateLeast(std::uint32_t link) const {
  double least = 0;
  work_ += 2 * uses_[link].size();
  for (int round = 0; round < 2; ++round) {
    double taken = 0, sharing = 0;
    bool has_new = false;
    for (const Use& use : uses_[link]) {
      const double rate = rate_[use.flow];
      const double weight = route_[use.flow].weight;
      has_new |= rate == 0;
      if (rate != 0 && rate < least) {
        taken += rate * weight;
      } else {
        sharing += weight;
      }
    }
    if (!has_new) return kUnknown;
    least = std::max(least, (capacity_[link] - taken) / sharing);
  }
  return least;
}

void FairShare::CollectChanged(double rate_removed_least) {
  std::sort(dirty_.begin(), dirty_.end());
  dirty_.erase(std::unique(dirty_.begin(), dirty_.end()), dirty_.end());
  unchanged_below_ = rate_removed_least;
  std::vector<double> leasts;
  for (const std::uint32_t link : dirty_) {
    leasts.push_back(RateLeast(link));
    unchanged_below_ = std::min(unchanged_below_, leasts.back());
  }
  unchanged_below_ *= 1 - 1e-6;  // a margin far above rounding errors
  for (std::size_t i = 0; i < dirty_.size(); ++i) Collect(dirty_[i], leasts[i]);
}

void FairShare::CollectThroughFullLinks() {
  for (; passed_ < touched_links_.size(); ++passed_)  // Collect() appends to it
    if (IsFull(touched_links_[passed_])) Collect(touched_links_[passed_], kUnknown);
}

// Collects the new flows of a link, those with its highest rate, and those with a rate of at least
// `least`, but none below unchanged_below_.
void FairShare::Collect(std::uint32_t link, double least) {
  double highest = 0;
  work_ += 2 * uses_[link].size();
  for (const Use& use : uses_[link]) highest = std::max(highest, rate_[use.flow]);
  least = std::max(std::min(least, highest * (1 - kRounding)), unchanged_below_);
  for (const Use& use : uses_[link]) {
    if (flow_round_[use.flow] == round_ || (rate_[use.flow] != 0 && rate_[use.flow] < least))
      continue;
    flow_round_[use.flow] = round_;
    touched_flows_.push_back(use.flow);
    for (const std::uint32_t other : LinksOf(use.flow)) {
      if (touched_round_[other] == round_) continue;
      touched_round_[other] = round_;
      touched_links_.push_back(other);
    }
  }
}

// A link's equal share never decreases during filling. An old key in the queue can therefore only
// be too low; the link is then pushed again with its current share.
void FairShare::Fill() {
  using Entry = std::pair<double, std::uint32_t>;
  ++fill_;
  bottlenecks_.clear();
  for (const std::uint32_t link : touched_links_) {
    left_[link] = capacity_[link] - load_[link];
    unfixed_[link] = 0;
  }
  work_ += touched_links_.size() + touched_flows_.size();
  for (const Flow flow : touched_flows_) {
    unfixed_fill_[flow] = fill_;
    const std::uint32_t weight = route_[flow].weight;
    const double had = rate_[flow] * weight;
    for (const std::uint32_t link : LinksOf(flow)) {
      left_[link] += had;
      unfixed_[link] += weight;
    }
  }
  std::vector<Entry> entries;
  for (const std::uint32_t link : touched_links_)
    if (unfixed_[link] > 0) entries.emplace_back(left_[link] / unfixed_[link], link);
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> narrowest(std::greater<>{},
                                                                           std::move(entries));
  while (!narrowest.empty()) {
    const auto [key, link] = narrowest.top();
    narrowest.pop();
    if (unfixed_[link] == 0) continue;
    const double share = left_[link] / unfixed_[link];
    if (share > key) {
      narrowest.emplace(share, link);
    } else {
      Narrow(link, share);
    }
  }
}

// Fixes the rates of the remaining flows of a bottleneck.
void FairShare::Narrow(std::uint32_t link, double share) {
  // Rounding errors may leave no bandwidth, but a rate must not be zero.
  share = std::max(share, capacity_[link] * 1e-12);
  bottlenecks_.push_back({link, share});
  work_ += 2 * uses_[link].size();  // also for CollectAboveBottlenecks()
  for (const Use& use : uses_[link]) {
    if (unfixed_fill_[use.flow] != fill_) continue;
    unfixed_fill_[use.flow] = 0;
    new_rate_[use.flow] = share;
    const std::uint32_t weight = route_[use.flow].weight;
    const double taken = share * weight;
    for (const std::uint32_t other : LinksOf(use.flow)) {
      left_[other] = std::max(left_[other] - taken, 0.0);
      unfixed_[other] -= weight;
    }
  }
}

// Collects flows with a rate above the share of their bottleneck. False if no flow has. `all`:
// also collects the other flows of such links.
bool FairShare::CollectAboveBottlenecks(bool all) {
  const std::size_t flows_before = touched_flows_.size();
  for (const auto& [link, share] : bottlenecks_) {
    const double limit = share * (1 + kRounding);
    const bool is_above = std::any_of(uses_[link].begin(), uses_[link].end(), [&](const Use& use) {
      return flow_round_[use.flow] != round_ && rate_[use.flow] > limit;
    });
    if (is_above) Collect(link, all ? 0 : share);
  }
  return touched_flows_.size() != flows_before;
}

// Keeps the old rate if it differs only by rounding, so that equal flows still end together.
void FairShare::Commit() {
  for (const Flow flow : touched_flows_) {
    const double before = rate_[flow];
    if (std::abs(new_rate_[flow] - before) <= kRounding * before) continue;
    const double more = (new_rate_[flow] - before) * route_[flow].weight;
    for (const std::uint32_t link : LinksOf(flow)) load_[link] += more;
    rate_[flow] = new_rate_[flow];
    changes_.push_back({flow, before});
  }
}

}  // namespace phub::plan
