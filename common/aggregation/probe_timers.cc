#include "common/aggregation/probe_timers.h"

#include <algorithm>
#include <cstdlib>

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
  Block& sent = places_[place].blocks[block];
  sent.waits = 0;
  sent.due = now + WaitOf(sent);
  places_[place].due = std::min(places_[place].due, sent.due);
}

void ProbeTimers::Answered(std::uint32_t place, std::uint32_t block, TimeNs now) {
  Block& answered = places_[place].blocks[block];
  if (answered.probed == 0) return;
  if (answered.questions == 1) Measure(now - answered.probed);
  answered.probed = 0;  // a duplicate of this answer measures nothing
}

void ProbeTimers::Close(std::uint32_t place) {
  places_[place].due = kNever;
  std::ranges::fill(places_[place].blocks, Block{});
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

void ProbeTimers::Measure(DurationNs round_trip) {
  if (smoothed_ == 0) {
    smoothed_ = round_trip;
    deviation_ = round_trip / 2;
  } else {
    deviation_ += (std::abs(round_trip - smoothed_) - deviation_) / 4;
    smoothed_ += (round_trip - smoothed_) / 8;
  }
  timeout_ = std::clamp(smoothed_ + 4 * deviation_, kTimeoutMin, kTimeoutMax);
}

}  // namespace phub::aggregation
