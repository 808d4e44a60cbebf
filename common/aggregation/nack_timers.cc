#include "common/aggregation/nack_timers.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace phub::aggregation {
namespace {

constexpr std::uint32_t kDoublingsMax = 9;  // 2 ms to 1 s

DurationNs Doubled(DurationNs wait, std::uint32_t times) {
  return std::min(std::max(wait, NackTimers::kWaitMin) << std::min(times, kDoublingsMax),
                  NackTimers::kWaitMax);
}

}  // namespace

NackTimers::NackTimers(const Geometry& geometry)
    : geometry_(geometry), places_(geometry.positions) {}

DurationNs NackTimers::SilenceWait() const {
  return Doubled(positions_.is_known() ? positions_.timeout() : kWaitFirst, vain_);
}

DurationNs NackTimers::AnswerWait(std::uint32_t times) const {
  const std::uint32_t before = std::max(times, 1u) - 1;
  return Doubled(answers_.is_known() ? answers_.timeout() : kWaitFirst, before);
}

TimeNs NackTimers::deadline() const {
  if (open_count_ == 0) return kNever;
  TimeNs deadline = silent_due_;
  for (const Place& place : places_) {
    if (place.open) deadline = std::min(deadline, place.due);
  }
  return deadline;
}

void NackTimers::Clear() {
  std::ranges::fill(places_, Place{});
  open_count_ = vain_ = 0;
  next_ = Position{0};
}

void NackTimers::Assigned(Position position, TimeNs now) {
  Place& place = places_[geometry_.PlaceOf(position)];
  PHUB_CHECK(!place.open && position >= next_, "position={}", position.value);
  place = {.open = true, .position = position, .since = now};
  next_ = Position{position.value + 1};
  ++open_count_;
  silent_due_ = now + SilenceWait();
}

void NackTimers::NoteLater(Position position, TimeNs now) {
  for (Place& place : places_) {
    if (!place.open || place.position >= position || position < place.counts_from) continue;
    if (++place.later_sums >= kLaterSums) place.due = now;
  }
}

void NackTimers::Arrived(Position position, Sum sum, TimeNs now) {
  Place& arrived = places_[geometry_.PlaceOf(position)];
  PHUB_CHECK(arrived.open && arrived.position == position, "position={}", position.value);
  NoteLater(position, now);
  vain_ = 0;
  if (const TimeNs asked_at = std::exchange(arrived.asked_at, 0); asked_at != 0)
    answers_.Add(now - asked_at);
  arrived.in_vain = 0;
  if (arrived.was_asked) arrived.due = now + AnswerWait(1);
  if (!arrived.was_asked && sum == Sum::kOfLastBlock) arrived.due = now;
  if (sum == Sum::kLast) {
    if (!arrived.was_asked) positions_.Add(now - arrived.since);
    arrived.open = false;
    --open_count_;
  }
  silent_due_ = now + SilenceWait();
}

Position NackTimers::NoteAsked(Place& place, TimeNs now) {
  place.asked_at = place.was_asked ? 0 : now;
  place.was_asked = true;
  place.later_sums = 0;
  place.counts_from = next_;
  place.due = now + AnswerWait(++place.in_vain);
  silent_due_ = now + SilenceWait();
  return place.position;
}

NackTimers::Place& NackTimers::Oldest() {
  Place* oldest = nullptr;
  for (Place& place : places_) {
    if (place.open && (oldest == nullptr || place.position < oldest->position)) oldest = &place;
  }
  PHUB_CHECK(oldest != nullptr);
  return *oldest;
}

}  // namespace phub::aggregation
