#include "server/control/jobs/tenant_turns.h"

#include <utility>

namespace phub::server {

void TenantTurns::Enter(const std::string& tenant, std::function<void()> begin) {
  waiting_[tenant].push_back(std::move(begin));
  BeginNext();
}

void TenantTurns::Leave(const std::string& tenant) {
  at_work_.erase(tenant);
  BeginNext();
}

std::size_t TenantTurns::WaitingOf(const std::string& tenant) const {
  const auto found = waiting_.find(tenant);
  return found == waiting_.end() ? 0 : found->second.size();
}

// A piece that ends at once calls Leave from within, so this is a loop and no recursion.
void TenantTurns::BeginNext() {
  if (std::exchange(beginning_, true)) return;
  for (std::size_t passed = 0; passed < waiting_.size() && at_work_.size() < at_once_;) {
    auto next = waiting_.upper_bound(last_);
    if (next == waiting_.end()) next = waiting_.begin();
    last_ = next->first;
    if (!at_work_.insert(last_).second) {
      ++passed;
      continue;
    }
    passed = 0;
    const std::function<void()> begin = std::move(next->second.front());
    next->second.pop_front();
    if (next->second.empty()) waiting_.erase(next);
    begin();
  }
  beginning_ = false;
}

}  // namespace phub::server
