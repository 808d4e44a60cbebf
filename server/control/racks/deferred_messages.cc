#include "server/control/racks/deferred_messages.h"

#include <algorithm>

#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::size_t kDeferredMax = 1024;
constexpr std::size_t kDeferredBytesMax = 64 << 20;

// For messages that request or open a job: whether the newer one replaces the older one. Workers
// may request any number of runs, and only the last request counts. Rack 0 opens few runs, so
// `open` messages of different runs are all kept.
bool IsSameRequest(const v1::PeerMessage& one, const v1::PeerMessage& other) {
  const auto job_of = [](const v1::PeerMessage& message) -> const v1::PeerJob& {
    return message.has_open() ? message.open() : message.request();
  };
  const bool same_run = one.has_request() || one.incarnation() == other.incarnation();
  return one.message_case() == other.message_case() && same_run &&
         job_of(one).tenant() == job_of(other).tenant() && job_of(one).job() == job_of(other).job();
}

}  // namespace

bool DeferredMessages::HasRequests() const {
  PHUB_ON_CONTROL();
  return std::ranges::any_of(messages_,
                             [](const auto& each) { return each.message.has_request(); });
}

bool DeferredMessages::Add(RackIndex from, const v1::PeerMessage& message, TimeNs now) {
  std::size_t bytes = message.ByteSizeLong();
  for (DeferredMessage& earlier : messages_) {
    if (earlier.from == from && IsSameRequest(earlier.message, message)) {
      earlier = {from, message, Since(now)};
      return true;
    }
    bytes += earlier.message.ByteSizeLong();
  }
  if (messages_.size() >= kDeferredMax || bytes > kDeferredBytesMax) return false;
  messages_.push_back({from, message, Since(now)});
  return true;
}

std::vector<DeferredMessage> DeferredMessages::TakeRequests() {
  PHUB_ON_CONTROL();
  std::vector<DeferredMessage> taken;
  std::erase_if(messages_, [&](const DeferredMessage& each) {
    if (!each.message.has_request()) return false;
    taken.push_back(each);
    return true;
  });
  return taken;
}

void DeferredMessages::DropFrom(RackIndex rack) {
  std::erase_if(messages_, [&](const auto& each) { return each.from == rack; });
}

void DeferredMessages::DropOpen(std::uint64_t incarnation) {
  PHUB_ON_CONTROL();
  std::erase_if(messages_, [&](const auto& each) {
    return each.message.has_open() && each.message.incarnation() == incarnation;
  });
}

}  // namespace phub::server
