// The keys of a job by number. They are kept batch by batch, as they were added, so that adding a
// batch costs the same however many keys there are. Under control's lock; the specs do not change,
// and a copy of the table shares them with other threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

using KeyList = std::vector<v1::KeySpec>;

class KeyTable {
 public:
  // `iterations`: the first iteration of each key of the batch.
  void Add(std::shared_ptr<const KeyList> batch, const std::vector<std::uint64_t>& iterations) {
    firsts_.push_back(size_);
    size_ += batch->size();
    collective_counts_.push_back(static_cast<std::size_t>(
        std::ranges::count_if(*batch, [](const v1::KeySpec& key) { return key.collective(); })));
    collective_count_ += collective_counts_.back();
    first_iterations_.insert(first_iterations_.end(), iterations.begin(), iterations.end());
    batches_.push_back(std::move(batch));
  }
  // Removes that batch and all later ones.
  void RemoveBatchesFrom(std::size_t batch) {
    PHUB_CHECK(batch < batches_.size(), "batch={} batches={}", batch, batches_.size());
    for (std::size_t i = batch; i < batches_.size(); ++i)
      collective_count_ -= collective_counts_[i];
    size_ = firsts_[batch];
    collective_counts_.resize(batch);
    first_iterations_.resize(size_);
    firsts_.resize(batch);
    batches_.resize(batch);
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // Whether all keys of the batch are collective.
  bool IsCollective(std::size_t batch) const {
    return collective_counts_[batch] == batches_[batch]->size();
  }
  // Keys that are not collective: those of iterations and checkpoints.
  std::size_t saved_count() const { return size_ - collective_count_; }
  void clear() { *this = {}; }
  // As it was added.
  const v1::KeySpec& operator[](std::size_t key) const {
    PHUB_CHECK(key < size_, "key={} keys={}", key, size_);
    const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), key);
    const std::size_t batch = static_cast<std::size_t>(after - firsts_.begin()) - 1;
    return (*batches_[batch])[key - firsts_[batch]];
  }
  // [key]; a loaded checkpoint changes them.
  std::vector<std::uint64_t>& first_iterations() { return first_iterations_; }
  const std::vector<std::uint64_t>& first_iterations() const { return first_iterations_; }

 private:
  std::vector<std::shared_ptr<const KeyList>> batches_;
  std::vector<std::size_t> firsts_;             // [batch]: its first key
  std::vector<std::size_t> collective_counts_;  // [batch]
  std::vector<std::uint64_t> first_iterations_;
  std::size_t size_ = 0;
  std::size_t collective_count_ = 0;
};

}  // namespace phub::server
