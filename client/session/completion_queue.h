// Rounds that are complete, for threads that wait for any of many handles (phub_queue of phub.h).
//
// A round is one node of a list, allocated by the caller who adds it. It moves from its key to the
// queue, so the engine's thread allocates nothing.
//
// Threads: any. Locks: a key's lock, then the queue's.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>

namespace phub::client {

class RoundSink;
struct KeyImpl;
struct PoolRounds;

struct WatchedRound {
  std::uint64_t ticket = 0;
  std::uint64_t tag = 0;                           // the caller's
  std::shared_ptr<RoundSink> queue = {};           // until the round is complete
  std::shared_ptr<KeyImpl> key = {};               // after that
  std::shared_ptr<const PoolRounds> earlier = {};  // rounds of the same pool operation
};
using WatchedRounds = std::list<WatchedRound>;

// Where keys report complete rounds.
class RoundSink {
 public:
  virtual ~RoundSink() = default;
  // Takes one complete round. On the engine's thread, with the key's lock.
  virtual void Report(WatchedRounds& one) = 0;
};

class CompletionQueue final : public RoundSink {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  // Does nothing after Close().
  void Report(WatchedRounds& one) override;
  // Waits for a round: kReady fills `one`.
  enum class Outcome { kReady, kTimedOut, kClosed };
  Outcome Wait(const Deadline& deadline, WatchedRounds& one);
  // Discards all rounds and wakes all waiting threads.
  void Close();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  WatchedRounds ready_;
  bool closed_ = false;
};

}  // namespace phub::client
