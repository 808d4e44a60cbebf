#include "common/plan/fair_share.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace phub::plan {

FairShare::FairShare(std::vector<double> link_bytes_per_s, std::size_t flow_count,
                     std::size_t path_links_max)
    : capacity_(std::move(link_bytes_per_s)),
      path_links_max_(path_links_max),
      rate_(flow_count, 0),
      slot_of_(flow_count, 0),
      uses_(capacity_.size()),
      load_(capacity_.size(), 0),
      whole_round_(capacity_.size(), 0),
      touched_round_(capacity_.size(), 0),
      left_(capacity_.size(), 0),
      unfixed_(capacity_.size(), 0) {}

void FairShare::Add(Flow flow, std::span<const LinkIndex> path) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<std::uint32_t>(slots_.size()));
    slots_.emplace_back();
    place_.resize(slots_.size() * path_links_max_);
    slot_round_.push_back(0);
    fixed_fill_.push_back(0);
    new_rate_.push_back(0);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = {flow, path};
  slot_of_[flow] = slot;
  rate_[flow] = 0;
  for (std::uint32_t hop = 0; hop < path.size(); ++hop) {
    std::vector<Use>& uses = uses_[path[hop].value];
    place_[slot * path_links_max_ + hop] = static_cast<std::uint32_t>(uses.size());
    uses.push_back({slot, hop});
    dirty_.push_back(path[hop]);
  }
}

void FairShare::Remove(Flow flow) {
  const std::uint32_t slot = slot_of_[flow];
  const std::span<const LinkIndex> path = slots_[slot].path;
  for (std::uint32_t hop = 0; hop < path.size(); ++hop) {
    std::vector<Use>& uses = uses_[path[hop].value];
    const std::uint32_t place = place_[slot * path_links_max_ + hop];
    uses[place] = uses.back();
    place_[uses[place].slot * path_links_max_ + uses[place].hop] = place;
    uses.pop_back();
    double& load = load_[path[hop].value];
    if (IsFull(path[hop]))
      dirty_.push_back(path[hop]);  // else its other flows had all they can use
    load = uses.empty() ? 0 : load - rate_[flow];
  }
  free_slots_.push_back(slot);
}

bool FairShare::IsFull(LinkIndex link) const {
  constexpr double kNearlyAll = 1 - 1e-9;  // sums of rates are rounded
  return load_[link.value] >= capacity_[link.value] * kNearlyAll;
}

std::span<const FairShare::Change> FairShare::Update() {
  changes_.clear();
  if (dirty_.empty()) return changes_;
  ++round_;
  whole_.clear();
  touched_.clear();
  touched_slots_.clear();
  for (const LinkIndex link : dirty_) Collect(link);
  dirty_.clear();
  // Links that become full are drawn in together; when that goes on, all connected links are.
  constexpr int kPatience = 3;
  for (int attempt = 0;; ++attempt) {
    CollectThrough(attempt >= kPatience);
    if (Fill()) break;
  }
  Commit();
  return changes_;
}

// All flows of the link are computed again, and every link they use has some that are.
void FairShare::Collect(LinkIndex link) {
  if (whole_round_[link.value] == round_) return;
  whole_round_[link.value] = round_;
  whole_.push_back(link);
  for (const Use& use : uses_[link.value]) {
    if (slot_round_[use.slot] == round_) continue;
    slot_round_[use.slot] = round_;
    touched_slots_.push_back(use.slot);
    for (const LinkIndex other : slots_[use.slot].path) {
      if (touched_round_[other.value] == round_) continue;
      touched_round_[other.value] = round_;
      touched_.push_back(other);
    }
  }
}

void FairShare::CollectThrough(bool all) {
  for (std::size_t i = 0; i < touched_.size(); ++i)  // grows meanwhile
    if (all || IsFull(touched_[i])) Collect(touched_[i]);
}

// A link's equal share never falls while flows are set aside at the least share, so a key that was
// computed earlier is too low at most, and the link is put back with its new one. False if links
// have become full that have flows which are not computed again: they are now, start over.
bool FairShare::Fill() {
  using Entry = std::pair<double, std::uint32_t>;
  ++fill_;
  became_full_.clear();
  for (const LinkIndex link : touched_) {
    left_[link.value] = capacity_[link.value] - load_[link.value];
    unfixed_[link.value] = 0;
  }
  for (const std::uint32_t slot : touched_slots_) {
    for (const LinkIndex link : slots_[slot].path) {
      left_[link.value] += rate_[slots_[slot].flow];
      ++unfixed_[link.value];
    }
  }
  std::vector<Entry> entries;
  for (const LinkIndex link : touched_)
    if (unfixed_[link.value] > 0)
      entries.emplace_back(left_[link.value] / unfixed_[link.value], link.value);
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
  const std::size_t slots_before = touched_slots_.size();
  for (const LinkIndex link : became_full_) Collect(link);
  return touched_slots_.size() == slots_before;
}

// Sets aside the flows of a link that is full now.
void FairShare::Narrow(std::uint32_t link, double share) {
  if (whole_round_[link] != round_) became_full_.push_back(LinkIndex{link});
  for (const Use& use : uses_[link]) {
    if (slot_round_[use.slot] != round_ || fixed_fill_[use.slot] == fill_) continue;
    fixed_fill_[use.slot] = fill_;
    new_rate_[use.slot] = share;
    for (const LinkIndex other : slots_[use.slot].path) {
      left_[other.value] = std::max(left_[other.value] - share, 0.0);
      --unfixed_[other.value];
    }
  }
}

// A rate that differs by rounding only stays as it is, so that equal flows keep ending together.
void FairShare::Commit() {
  constexpr double kRounding = 1e-9;
  for (const std::uint32_t slot : touched_slots_) {
    const Flow flow = slots_[slot].flow;
    const double before = rate_[flow];
    if (std::abs(new_rate_[slot] - before) <= kRounding * before) continue;
    for (const LinkIndex link : slots_[slot].path) load_[link.value] += new_rate_[slot] - before;
    rate_[flow] = new_rate_[slot];
    changes_.push_back({flow, before});
  }
}

}  // namespace phub::plan
