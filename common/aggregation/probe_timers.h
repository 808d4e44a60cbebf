// When a worker asks again about blocks that it has sent (WorkerStream::Probe). Pure: no clock, no
// I/O. One thread.
//
// The first question about a block comes one timeout after its payload, or once a later position is
// taken. Each further question doubles the wait, up to kTimeoutMax, until the position is taken or
// the payload is sent again.
// The timeout is derived from two times, each as in RFC 6298; the longer one counts:
//   - from a question to its answer. By Karn's rule, only the answer to the first question about a
//     block of a position is measured: later answers may belong to any question.
//   - from the payloads of a position to TAKEN, if none was sent again, and if no question was the
//     cause: TAKEN came without a question, or sooner after it than any answer. Positions queue for
//     the links in both directions, so this may be many times the time of a question.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/aggregation/round_trip.h"
#include "common/aggregation/stream.h"
#include "common/base/clock.h"

namespace phub::aggregation {

class ProbeTimers {
 public:
  static constexpr DurationNs kTimeoutFirst = 50 * kMillisecond;
  static constexpr DurationNs kTimeoutMin = 2 * kMillisecond;
  static constexpr DurationNs kTimeoutMax = kSecond;
  static constexpr TimeNs kNever = INT64_MAX;

  explicit ProbeTimers(const Geometry& geometry);

  // The payload was sent, for the first time or again.
  void Sent(std::uint32_t place, std::uint32_t block, TimeNs now);
  // The aggregator answered about the block.
  void Answered(std::uint32_t place, std::uint32_t block, TimeNs now);
  // A position that was sent after the one at this place is taken, so probably something of this
  // one is lost. It is to be asked about now, unless a question has been asked already.
  void Overtaken(std::uint32_t place, TimeNs now);
  // The position at the place is taken. Close() it, too.
  void Taken(std::uint32_t place, TimeNs now);
  // The position at the place needs no more questions.
  void Close(std::uint32_t place);

  // Calls `ask` for each block that is to be probed now, and counts the probe as sent.
  using Ask = std::function<void(std::uint32_t place, std::uint32_t block)>;
  void Due(TimeNs now, const Ask& ask);
  // When Due() has something to do. It may be too early, never too late.
  TimeNs deadline() const;

  DurationNs timeout() const { return timeout_; }

 private:
  struct Block {
    bool was_sent = false;
    TimeNs due = kNever;
    TimeNs probed = 0;  // when the first question was sent
    std::uint32_t questions = 0;
    std::uint32_t waits = 0;  // questions since the payload was last sent
  };
  struct Place {
    TimeNs due = kNever;          // the earliest of its blocks, or earlier
    TimeNs sent = kNever;         // when the first payload was
    bool was_sent_again = false;  // a payload was
    TimeNs probed = 0;            // when the first question was sent
    std::vector<Block> blocks;
  };

  void SetTimeout();
  DurationNs WaitOf(const Block& block) const;

  std::vector<Place> places_;
  DurationNs timeout_ = kTimeoutFirst;
  RoundTrip questions_;
  DurationNs shortest_ = 0;  // from a question to its answer; 0: none has been answered
  RoundTrip positions_;
};

}  // namespace phub::aggregation
