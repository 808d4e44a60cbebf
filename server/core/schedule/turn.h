// What fair_queue.h keeps of each tenant and job: a place in a ring, what it may still use of its
// turn, and a tenant's bandwidth. Plain data of one core loop, and that loop's alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::server {

struct Chunk;
struct JobShard;

// What a tenant's jobs may have of one core loop.
struct TenantShare {
  std::uint32_t weight = 100;         // beside other tenants', where the core loop is busy
  std::uint64_t bandwidth_bytes = 0;  // per second, pushed to this core loop; 0: no limit
};

}  // namespace phub::server

namespace phub::server::schedule {

inline constexpr std::uint32_t kWeightDefault = 100;
inline constexpr std::uint32_t kWeightMax = 10'000;

// A place in a ring of those that take turns. In one ring or in none.
struct Turn {
  std::int64_t deficit_ns = 0;  // what is left of its turn; negative: owed
  std::uint64_t epoch = 0;      // FairQueue's, when deficit_ns was last right
  std::uint32_t weight = kWeightDefault;
  Turn* next = nullptr;  // null: in no ring
  Turn* previous = nullptr;
  bool waits() const { return next != nullptr; }
};

class Ring {
 public:
  bool empty() const { return head_ == nullptr; }
  bool alone() const { return head_ != nullptr && head_->next == head_; }
  Turn& front() const { return *head_; }
  void Rotate() { head_ = head_->next; }
  // Behind all others.
  void Append(Turn& turn) {
    if (head_ == nullptr) {
      head_ = turn.next = turn.previous = &turn;
      return;
    }
    turn.next = head_;
    turn.previous = head_->previous;
    head_->previous->next = &turn;
    head_->previous = &turn;
  }
  void Remove(Turn& turn) {
    if (head_ == &turn) head_ = alone() ? nullptr : turn.next;
    turn.next->previous = turn.previous;
    turn.previous->next = turn.next;
    turn.next = turn.previous = nullptr;
  }

 private:
  Turn* head_ = nullptr;
};

// Bytes per second, in debt by what had arrived already when they ran out, and by what comes while
// they are out: to a limit, which whoever takes knows.
class TokenBucket {
 public:
  // 0: no limit. What is owed stays owed.
  void SetRate(std::uint64_t bytes_per_second, TimeNs now) {
    Refill(now);
    rate_ = bytes_per_second;
    tokens_ = std::min<std::int64_t>(tokens_, 0);
    refilled_at_ = now;
  }
  bool limited() const { return rate_ > 0; }
  bool empty() const { return limited() && tokens_ < 0; }
  void Take(std::uint64_t bytes, std::uint64_t debt_max) {
    if (!limited()) return;
    const std::int64_t lowest = std::min(tokens_, -static_cast<std::int64_t>(debt_max));
    tokens_ = std::max(tokens_ - static_cast<std::int64_t>(bytes), lowest);
  }
  void Refill(TimeNs now) {
    if (!limited() || now <= refilled_at_) return;
    // In microseconds, so that no rate overflows; what is less than one is left for the next time.
    const std::int64_t elapsed = (now - refilled_at_) / kMicrosecond;
    const std::int64_t burst = BytesIn(kBurst / kMicrosecond);
    // However long nobody looked: a full bucket is a full bucket.
    const std::int64_t wanted = (burst - std::min(tokens_, burst)) + 1;
    const std::int64_t full_in = MicrosecondsFor(wanted);
    tokens_ = elapsed >= full_in ? burst : tokens_ + BytesIn(elapsed);
    refilled_at_ += elapsed * kMicrosecond;
  }
  // When it will not be empty any more.
  TimeNs FilledAt() const {
    return tokens_ >= 0 ? refilled_at_ : refilled_at_ + MicrosecondsFor(-tokens_) * kMicrosecond;
  }

 private:
  // What a tenant may take at once after a pause: long for a transport, short for a person.
  static constexpr DurationNs kBurst = 10 * kMillisecond;
  std::int64_t BytesIn(std::int64_t microseconds) const {
    return static_cast<std::int64_t>(rate_ / 1'000'000) * microseconds +
           static_cast<std::int64_t>(rate_ % 1'000'000) * microseconds / 1'000'000;
  }
  // Rounded up, and a little more: never too few.
  std::int64_t MicrosecondsFor(std::int64_t bytes) const {
    return static_cast<std::int64_t>(static_cast<double>(bytes) * 1e6 /
                                     static_cast<double>(rate_)) +
           2;
  }
  std::uint64_t rate_ = 0;
  std::int64_t tokens_ = 0;
  TimeNs refilled_at_ = 0;
};

// A tenant on a core loop. Its jobs share its turn.
struct TenantTurn : Turn {
  std::uint32_t tenant = 0;  // control's number of it
  std::uint32_t jobs = 0;    // that the core loop has
  bool used = false;         // the row was ever somebody's
  bool throttled = false;    // over its bandwidth: no round is begun to be finished, no own reply
                             // sent; what other racks bring is answered all the same
  Ring waiting;              // JobTurns with whole rounds
  TokenBucket bucket;
  std::uint64_t iteration_bytes = 0;     // that one iteration of all its jobs pushes
  TenantTurn* next_throttled = nullptr;  // in FairQueue's list, while throttled
};

// A job on a core loop, and its whole rounds that wait to be finished, oldest first.
struct JobTurn : Turn {
  JobShard* shard = nullptr;
  TenantTurn* tenant = nullptr;  // null: the core loop does not have the job
  Chunk* first = nullptr;
  Chunk* last = nullptr;
  bool held = false;  // its lanes are not read
  std::uint64_t iteration_bytes = 0;
  bool throttled() const { return tenant != nullptr && tenant->throttled; }
};

}  // namespace phub::server::schedule
