// Long work that must not hold control's lock: checking, placing, describing and comparing many
// keys. Nobody can answer a heartbeat while the lock is held.
#pragma once

#include <functional>
#include <string>

namespace phub::server {

// Called with control's lock held. Returns at once.
class Background {
 public:
  virtual ~Background() = default;
  // Runs `work` on another thread without the lock, then `then` under the lock. Work of one tenant
  // runs in order; tenants take turns. Both are dropped when the daemon stops.
  virtual void Run(const std::string& tenant, std::function<void()> work,
                   std::function<void()> then) = 0;
};

}  // namespace phub::server
