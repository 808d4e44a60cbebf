// The keys of a job by number. They are kept batch by batch, as they were added, so that adding a
// batch costs the same however many keys there are. Under control's lock; the batches' specs are
// shared with threads that read what does not change.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "phub/v1/session.pb.h"

namespace phub::server {

using KeyList = std::vector<v1::KeySpec>;

class KeyTable {
 public:
  void Add(std::shared_ptr<KeyList> batch) {
    firsts_.push_back(size_);
    size_ += batch->size();
    batches_.push_back(std::move(batch));
  }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void clear() { *this = {}; }
  v1::KeySpec& operator[](std::size_t key) { return *Find(key); }
  const v1::KeySpec& operator[](std::size_t key) const { return *Find(key); }

 private:
  v1::KeySpec* Find(std::size_t key) const {
    PHUB_CHECK(key < size_, "key={} keys={}", key, size_);
    const auto after = std::upper_bound(firsts_.begin(), firsts_.end(), key);
    const std::size_t batch = static_cast<std::size_t>(after - firsts_.begin()) - 1;
    return &(*batches_[batch])[key - firsts_[batch]];
  }

  std::vector<std::shared_ptr<KeyList>> batches_;
  std::vector<std::size_t> firsts_;  // [batch]: its first key
  std::size_t size_ = 0;
};

}  // namespace phub::server
