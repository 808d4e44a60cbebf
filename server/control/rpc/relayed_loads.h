// The checkpoint loads that are forwarded to other racks: only the newest one of each job. An older
// one is ended at once. Otherwise its streams to the other racks would stay open until its client
// disconnects, and a connection has a limited number of streams. With Control's lock held.
#pragma once

#include <functional>
#include <map>
#include <utility>

#include "common/base/ids.h"

namespace phub::server {

class RelayedLoads {
 public:
  // `load` identifies the caller. `end`: called once, if a newer load begins before this one is
  // over.
  void Begin(Incarnation job, const void* load, std::function<void()> end) {
    const auto older = loads_.find(job);
    std::function<void()> end_older;
    if (older != loads_.end()) end_older = std::move(older->second.end);
    loads_[job] = {load, std::move(end)};
    if (end_older) end_older();
  }
  void Over(Incarnation job, const void* load) {
    const auto found = loads_.find(job);
    if (found != loads_.end() && found->second.load == load) loads_.erase(found);
  }

 private:
  struct Load {
    const void* load = nullptr;
    std::function<void()> end;
  };
  std::map<Incarnation, Load> loads_;
};

}  // namespace phub::server
