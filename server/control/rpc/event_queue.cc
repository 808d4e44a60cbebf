#include "server/control/rpc/event_queue.h"

#include <utility>

#include "common/base/check.h"

namespace phub::server {
namespace {

template <typename Message>
bool Replace(std::optional<Message>& place, const Message& message) {
  const bool replaced = place.has_value();
  place = message;
  return replaced;
}

template <typename Message>
Message Take(std::optional<Message>& place) {
  Message message = *std::move(place);
  place.reset();
  return message;
}

}  // namespace

bool EventQueue::Push(const v1::SessionEvent& event) {
  switch (event.event_case()) {
    case v1::SessionEvent::kHeartbeat: return Replace(heartbeat_, event.heartbeat());
    case v1::SessionEvent::kDraining: return Replace(draining_, event.draining());
    case v1::SessionEvent::kSaved: return Replace(saved_, event.saved());
    case v1::SessionEvent::kAwaited: {
      const auto [place, added] = ranks_.try_emplace(event.awaited().rank());
      place->second.awaited = event.awaited();
      return !added;
    }
    case v1::SessionEvent::kReturned: return PushReturned(event.returned());
    case v1::SessionEvent::kMissing: return Replace(missing_, event.missing());
    case v1::SessionEvent::kRefused: return Replace(refused_, event.refused());
    case v1::SessionEvent::kLate: return Replace(late_, event.late());
    case v1::SessionEvent::kDump: return Replace(dump_, event.dump());
    case v1::SessionEvent::kJobFailed:
      ranks_.clear();  // nobody waits for a rank any more
      return Replace(failed_, event.job_failed());
    case v1::SessionEvent::EVENT_NOT_SET: break;
  }
  return false;
}

bool EventQueue::PushReturned(const v1::RankReturned& returned) {
  const auto [place, added] = ranks_.try_emplace(returned.rank());
  RankNews& news = place->second;
  news.awaited.reset();
  // If an earlier return was by another process, the rank was taken over, whatever came after it.
  news.restarted = news.restarted || returned.restarted();
  return !added;
}

std::size_t EventQueue::size() const {
  return ranks_.size() + (saved_ ? 1 : 0) + (failed_ ? 1 : 0) + (draining_ ? 1 : 0) +
         (missing_ ? 1 : 0) + (refused_ ? 1 : 0) + (late_ ? 1 : 0) + (dump_ ? 1 : 0) +
         (heartbeat_ ? 1 : 0);
}

v1::SessionEvent EventQueue::Pop() {
  PHUB_CHECK(!empty());
  v1::SessionEvent event;
  if (saved_) {
    *event.mutable_saved() = Take(saved_);
  } else if (failed_) {
    *event.mutable_job_failed() = Take(failed_);
  } else if (draining_) {
    *event.mutable_draining() = Take(draining_);
  } else if (refused_) {
    *event.mutable_refused() = Take(refused_);
  } else if (missing_) {
    *event.mutable_missing() = Take(missing_);
  } else if (late_) {
    *event.mutable_late() = Take(late_);
  } else if (dump_) {
    *event.mutable_dump() = Take(dump_);
  } else if (!ranks_.empty()) {
    auto next = ranks_.extract(ranks_.begin());
    RankNews& news = next.mapped();
    if (news.awaited) {
      *event.mutable_awaited() = *std::move(news.awaited);
    } else {
      event.mutable_returned()->set_rank(next.key());
      event.mutable_returned()->set_restarted(news.restarted);
    }
  } else {
    *event.mutable_heartbeat() = Take(heartbeat_);
  }
  return event;
}

}  // namespace phub::server
