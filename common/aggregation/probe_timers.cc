#include "common/aggregation/probe_timers.h"

#include <algorithm>
#include <utility>

namespace phub::aggregation {
namespace {

constexpr std::uint32_t kDoublingsMax = 9;  // 2 ms to 1 s

}  // namespace

ProbeTimers::ProbeTimers(const Geometry& geometry) : places_(geometry.positions) {
  for (Place& place : places_) place.blocks.resize(geometry.blocks);
}

DurationNs ProbeTimers::WaitOf(const Block& block) const {
  return std::min(timeout_ << std::min(block.waits, kDoublingsMax), kTimeoutMax);
}

void ProbeTimers::Sent(std::uint32_t place, std::uint32_t block, TimeNs now) {
  Place& at = places_[place];
  Block& sent = at.blocks[block];
  at.was_sent_again |= std::exchange(sent.was_sent, true);
  at.sent = std::min(at.sent, now);
  sent.waits = 0;
  sent.due = now + WaitOf(sent);
  at.due = std::min(at.due, sent.due);
}

void ProbeTimers::Answered(std::uint32_t place, std::uint32_t block, TimeNs now) {
  Block& answered = places_[place].blocks[block];
  if (answered.probed == 0) return;
  if (answered.questions == 1) {
    const DurationNs time = now - answered.probed;
    questions_.Add(time);
    shortest_ = shortest_ == 0 ? time : std::min(shortest_, time);
    SetTimeout();
  }
  answered.probed = 0;  // a duplicate of this answer measures nothing
}

void ProbeTimers::Overtaken(std::uint32_t place, TimeNs now) {
  Place& overtaken = places_[place];
  if (overtaken.sent == kNever || overtaken.probed != 0) return;
  for (Block& block : overtaken.blocks) {
    if (block.was_sent) block.due = std::min(block.due, now);
  }
  overtaken.due = std::min(overtaken.due, now);
}

void ProbeTimers::Taken(std::uint32_t place, TimeNs now) {
  const Place& taken = places_[place];
  if (taken.sent == kNever || taken.was_sent_again) return;
  // A sum that the question has made the aggregator send again says nothing about the usual time.
  if (taken.probed != 0 && now - taken.probed >= shortest_) return;
  positions_.Add(now - taken.sent);
  SetTimeout();
}

void ProbeTimers::Close(std::uint32_t place) {
  Place& closed = places_[place];
  closed.due = closed.sent = kNever;
  closed.was_sent_again = false;
  closed.probed = 0;
  std::ranges::fill(closed.blocks, Block{});
}

void ProbeTimers::Due(TimeNs now, const Ask& ask) {
  for (std::uint32_t p = 0; p < places_.size(); ++p) {
    Place& place = places_[p];
    if (place.due > now) continue;
    place.due = kNever;
    for (std::uint32_t b = 0; b < place.blocks.size(); ++b) {
      Block& block = place.blocks[b];
      if (block.due <= now) {
        if (++block.questions == 1) block.probed = now;
        if (place.probed == 0) place.probed = now;
        ++block.waits;
        block.due = now + WaitOf(block);
        ask(p, b);
      }
      place.due = std::min(place.due, block.due);
    }
  }
}

TimeNs ProbeTimers::deadline() const {
  TimeNs earliest = kNever;
  for (const Place& place : places_) earliest = std::min(earliest, place.due);
  return earliest;
}

void ProbeTimers::SetTimeout() {
  timeout_ =
      std::clamp(std::max(questions_.timeout(), positions_.timeout()), kTimeoutMin, kTimeoutMax);
}

}  // namespace phub::aggregation
