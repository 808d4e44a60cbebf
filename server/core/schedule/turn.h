// fair_queue.h's state of each tenant and job: its place in a ring, the rest of its turn, and a
// tenant's bandwidth. Plain data, only for the core loop's thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.h"

namespace phub::server {

struct Chunk;
struct JobShard;

// The share of one core loop that a tenant's jobs may use.
struct TenantShare {
  std::uint32_t weight = 100;         // relative to other tenants, if the core loop is busy
  std::uint64_t bandwidth_bytes = 0;  // pushed to this core loop per second; 0: no limit
};

}  // namespace phub::server

namespace phub::server::schedule {

inline constexpr std::uint32_t kWeightDefault = 100;
inline constexpr std::uint32_t kWeightMax = 10'000;

// A member of at most one ring of tenants or jobs that take turns.
struct Turn {
  std::int64_t deficit_ns = 0;  // the rest of its turn; negative: debt
  std::uint64_t epoch = 0;      // FairQueue's epoch in which deficit_ns is valid
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
  // Adds the turn behind all others.
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

// A token bucket of bytes. It may go into debt by bytes that had already arrived, or that arrive
// while it is empty, up to a limit that the caller of Take() passes.
class TokenBucket {
 public:
  // 0: no limit. A debt is kept.
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
    // In microseconds, so that no rate overflows; the remainder counts at the next call.
    const std::int64_t elapsed = (now - refilled_at_) / kMicrosecond;
    const std::int64_t burst = BytesIn(kBurst / kMicrosecond);
    // Stop at a full bucket, so that a long time since the last call does not overflow.
    const std::int64_t wanted = (burst - std::min(tokens_, burst)) + 1;
    const std::int64_t full_in = MicrosecondsFor(wanted);
    tokens_ = elapsed >= full_in ? burst : tokens_ + BytesIn(elapsed);
    refilled_at_ += elapsed * kMicrosecond;
  }
  // When the bucket will not be empty any more.
  TimeNs FilledAt() const {
    return tokens_ >= 0 ? refilled_at_ : refilled_at_ + MicrosecondsFor(-tokens_) * kMicrosecond;
  }

 private:
  // The burst that a tenant may send after a pause: long for a transport, short for people.
  static constexpr DurationNs kBurst = 10 * kMillisecond;
  std::int64_t BytesIn(std::int64_t microseconds) const {
    return static_cast<std::int64_t>(rate_ / 1'000'000) * microseconds +
           static_cast<std::int64_t>(rate_ % 1'000'000) * microseconds / 1'000'000;
  }
  // Rounded up by a little more than one, so that the time is never too short.
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
  std::uint32_t tenant = 0;  // control's number of the tenant
  std::uint32_t jobs = 0;    // its jobs on this core loop
  bool used = false;         // the row has or had a tenant
  bool throttled = false;    // over its bandwidth: its rounds are not finished and replies to its
                             // workers are not sent, but messages of other racks are processed
  Ring waiting;              // JobTurns with whole rounds
  TokenBucket bucket;
  std::uint64_t iteration_bytes = 0;     // bytes that one iteration of all its jobs pushes
  TenantTurn* next_throttled = nullptr;  // next in FairQueue's list of throttled tenants
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
