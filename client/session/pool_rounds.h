// The rounds of one operation of a pool (phub/pool.h). A handle has its last round, as of a key,
// and refers to the earlier ones, which may complete later: each key completes its own rounds in
// order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "client/session/key_impl.h"

namespace phub::client {

struct PoolRounds {
  struct Round {
    std::shared_ptr<KeyImpl> key;
    std::uint64_t ticket = 0;
  };
  std::vector<Round> earlier;  // empty: the operation is one round
};

// Waits for all rounds. rounds: null or the earlier ones. Returns the first error.
inline Status WaitForAll(const PoolRounds* rounds, KeyImpl& key, std::uint64_t ticket,
                         const KeyImpl::Deadline& deadline) {
  if (rounds != nullptr)
    for (const PoolRounds::Round& round : rounds->earlier)
      if (Status status = round.key->Wait(round.ticket, deadline); !status.ok()) return status;
  return key.Wait(ticket, deadline);
}

// Reports an operation to a queue when all its rounds are complete: it is the queue of each of
// them. The engine's thread only counts, and moves the node that the queue gets.
class RoundCount final : public RoundSink {
 public:
  // one: one element, for the queue.
  RoundCount(std::size_t count, WatchedRounds one, std::shared_ptr<RoundSink> queue)
      : left_(count), one_(std::move(one)), queue_(std::move(queue)) {}

  void Report(WatchedRounds& one) override {
    one.front().key.reset();  // the caller is the key, so this is not the last reference
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) queue_->Report(one_);
  }

 private:
  std::atomic<std::size_t> left_;
  WatchedRounds one_;
  const std::shared_ptr<RoundSink> queue_;
};

}  // namespace phub::client
