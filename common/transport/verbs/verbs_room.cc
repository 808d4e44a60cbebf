// Part of VerbsSender: makes room again when its own work requests complete, and when the peer
// reports what it has received.
#include <algorithm>

#include "common/base/check.h"
#include "common/transport/verbs/immediate.h"
#include "common/transport/verbs/verbs_sender.h"

namespace phub::transport {

void VerbsSender::OnCompletion() {
  PHUB_CHECK(signals_taken_ < signals_put_);
  const Signal& signal = signals_[signals_taken_++ % limits_.requests];
  // Work requests complete in the order in which they were posted.
  PHUB_CHECK(signal.posted > done_ && signal.posted <= posted_, "posted={} done={}", signal.posted,
             done_);
  PHUB_CHECK(signal.outbox >= outbox_done_ && signal.outbox <= outbox_put_, "outbox={} done={}",
             signal.outbox, outbox_done_);
  done_ = signal.posted;
  completed_ = std::max(completed_, signal.written);
  outbox_done_ = signal.outbox;
  blocked_ = false;
  while (has_unreported() && !at(reported_).notify_sent) ++reported_;
}

VerbsSender::Taken VerbsSender::OnTaken(std::uint32_t messages, std::uint32_t units) {
  const auto since = [](std::uint32_t now, std::uint64_t before) {
    return (now - static_cast<std::uint32_t>(before)) & kTakenMask;
  };
  const std::uint64_t messages_now = messages_taken_ + since(messages, messages_taken_);
  const std::uint64_t units_now = units_taken_ + since(units, units_taken_);
  if (messages_now > messages_sent_ || units_now > units_sent_) return Taken::kBroken;
  const bool more = messages_now != messages_taken_ || units_now != units_taken_;
  messages_taken_ = messages_now;
  units_taken_ = units_now;
  blocked_ = false;
  return more ? Taken::kMore : Taken::kNothingNew;
}

bool VerbsSender::CanFlush() const {
  if (blocked_) return false;
  if (end_ == VerbsEnd::kDaemon && has_announcement_) return true;
  return has_keys_ && has_unsent();
}

}  // namespace phub::transport
