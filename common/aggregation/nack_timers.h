// When the core loop asks for sums that have not arrived. Pure: no clock, no I/O. One thread.
// Allocates nothing after construction.
//
// Workers send blocks and positions in their order, and so do their links. Hence what is missing of
// a position is lost once its last block has arrived, or a few sums of later positions have (as TCP
// counts duplicate acknowledgments, RFC 5681). It is asked for at once. After a question, only
// positions assigned since then count.
// An answer may be lost, too. A position is asked for again if nothing of it arrives for the time
// that answers usually take. If no sum arrives at all, the oldest position is asked for after the
// time that positions usually take from their assignment to the last sum. Both times are estimated
// as in RFC 6298. Only positions that were not asked for and the answers to first questions are
// measured (Karn's rule). Each question in vain doubles the wait, up to kWaitMax.
#pragma once

#include <cstdint>
#include <vector>

#include "common/aggregation/round_trip.h"
#include "common/aggregation/stream.h"
#include "common/base/clock.h"

namespace phub::aggregation {

class NackTimers {
 public:
  static constexpr std::uint32_t kLaterSums = 3;
  static constexpr DurationNs kWaitFirst = 50 * kMillisecond;  // until a time was measured
  static constexpr DurationNs kWaitMin = 2 * kMillisecond;
  static constexpr DurationNs kWaitMax = kSecond;
  static constexpr TimeNs kNever = INT64_MAX;

  explicit NackTimers(const Geometry& geometry);

  // No position is open.
  void Clear();
  // Positions are assigned in ascending order, each to the free place that it has.
  void Assigned(Position position, TimeNs now);
  enum class Sum : std::uint8_t {
    kOther,
    kOfLastBlock,  // what is missing was sent before it
    kLast,         // nothing is missing any more
  };
  // A sum of the position has arrived.
  void Arrived(Position position, Sum sum, TimeNs now);

  // Calls ask(Position) for each position that is to be asked for now.
  template <typename Ask>
  void Due(TimeNs now, const Ask& ask) {
    for (Place& place : places_) {
      if (place.open && place.due <= now) ask(NoteAsked(place, now));
    }
    if (open_count_ != 0 && silent_due_ <= now) {
      ++vain_;
      ask(NoteAsked(Oldest(), now));
    }
  }
  // When Due() has something to do; kNever: no position is open.
  TimeNs deadline() const;
  // How long no sum must arrive until the oldest position is asked for.
  DurationNs SilenceWait() const;
  // How long nothing of a position must arrive that was asked for `times` times.
  DurationNs AnswerWait(std::uint32_t times) const;

 private:
  struct Place {
    bool open = false;
    bool was_asked = false;
    Position position{};
    Position counts_from{};        // sums of earlier positions do not count as later sums
    std::uint32_t later_sums = 0;  // since the last question
    std::uint32_t in_vain = 0;     // questions since the last sum
    TimeNs since = 0;
    TimeNs asked_at = 0;  // 0: the last question is answered, or was not the first
    TimeNs due = kNever;
  };

  Position NoteAsked(Place& place, TimeNs now);
  Place& Oldest();
  void NoteLater(Position position, TimeNs now);

  Geometry geometry_;
  std::vector<Place> places_;
  std::uint32_t open_count_ = 0;
  Position next_{};  // one more than the last that was assigned
  RoundTrip positions_;
  RoundTrip answers_;
  std::uint32_t vain_ = 0;  // questions since the last sum of any position
  TimeNs silent_due_ = kNever;
};

}  // namespace phub::aggregation
