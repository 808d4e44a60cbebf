// Work that needs much memory: one piece of a tenant at a time, and a few in all. Under control's
// lock.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

namespace phub::server {

class TenantTurns {
 public:
  explicit TenantTurns(std::size_t at_once) : at_once_(at_once) {}

  // Calls `begin` now or from a later Leave. Each call of it is followed by one of Leave, perhaps
  // from within `begin`.
  void Enter(const std::string& tenant, std::function<void()> begin);
  void Leave(const std::string& tenant);
  std::size_t WaitingOf(const std::string& tenant) const;

 private:
  void BeginNext();

  const std::size_t at_once_;
  std::map<std::string, std::deque<std::function<void()>>> waiting_;  // not empty
  std::set<std::string> at_work_;
  std::string last_;  // whose turn began last
  bool beginning_ = false;
};

}  // namespace phub::server
