// Prefaults nothing. Reports for each region the state that the test sets.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "server/control/jobs/prefaulter.h"

namespace phub::server {

class FakePrefaulter final : public Prefaulter {
 public:
  PagesFlag Take(std::vector<UnbackedMemory> memory) override {
    for (UnbackedMemory& each : memory) {
      asked_bytes += each.bytes;
      owners.push_back(std::move(each.owner));
    }
    flags.push_back(std::make_shared<std::atomic<PrefaultState>>(PrefaultState::kWaiting));
    return flags.back();
  }
  DoneFlag Free(std::shared_ptr<const void> memory) override {
    using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
    unwanted = std::make_shared<const Both>(std::move(unwanted), std::move(memory));
    if (freed == nullptr || freed->load()) freed = std::make_shared<std::atomic<bool>>(false);
    return freed;
  }
  void SetAll(PrefaultState state) const {
    for (const auto& flag : flags) flag->store(state);
  }
  std::size_t owned() const {
    return static_cast<std::size_t>(std::count_if(
        owners.begin(), owners.end(), [](const auto& owner) { return !owner.expired(); }));
  }

  std::uint64_t asked_bytes = 0;
  std::vector<std::weak_ptr<const void>> owners;
  std::vector<std::shared_ptr<std::atomic<PrefaultState>>> flags;
  std::shared_ptr<const void> unwanted;      // all of it
  std::shared_ptr<std::atomic<bool>> freed;  // a new one after it was set
};

}  // namespace phub::server
