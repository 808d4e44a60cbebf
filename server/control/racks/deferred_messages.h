// Messages from other racks that open jobs, kept until they can be handled: until an older run of
// the job has ended here, or until the topology is measured. Bounded: a newer message replaces an
// older one that requests the same. Owned by Control; under control's lock.
#pragma once

#include <deque>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "phub/v1/peer.pb.h"
#include "server/core/lane_owner.h"

namespace phub::server {

struct DeferredMessage {
  RackIndex from{};
  v1::PeerMessage message;
  TimeNs since = 0;
};

class DeferredMessages {
 public:
  bool empty() const { return messages_.empty(); }
  bool HasRequests() const;  // to open jobs

  // False if there is no room.
  [[nodiscard]] bool Add(RackIndex from, const v1::PeerMessage& message, TimeNs now);
  // Calls handle(message) for each message and forgets it, unless handle adds it again; it then
  // keeps its `since`.
  template <typename Handle>
  void HandleAll(Handle&& handle) {
    std::deque<DeferredMessage> taken;
    taken.swap(messages_);
    for (const DeferredMessage& each : taken) {
      handled_since_ = each.since;
      handle(each);
    }
    handled_since_ = 0;
  }
  // Since when the message that is being handled was deferred; `now` if it was not.
  TimeNs Since(TimeNs now) const { return handled_since_ != 0 ? handled_since_ : now; }

  std::vector<DeferredMessage> TakeRequests();
  void DropFrom(RackIndex rack);
  void DropOpen(std::uint64_t incarnation);  // the message with which rack 0 opens that run

 private:
  std::deque<DeferredMessage> messages_;
  TimeNs handled_since_ = 0;  // nonzero while a deferred message is handled again
};

}  // namespace phub::server
