// A round in flight, as returned by pushes and operations (phub/client.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "phub/export.h"
#include "phub/status.h"

namespace phub {

class Job;
class Key;

namespace client {
struct KeyImpl;
struct PoolRounds;
struct RoundAccess;
}  // namespace client

// A started push. Cheap: no allocation in the steady state. Destroying a handle does not affect the
// round. A handle may outlive its Job.
class PHUB_API Handle {
 public:
  Handle();  // complete, with an error
  ~Handle();
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle& other);
  Handle& operator=(const Handle& other);

  // Blocks until the round is complete. Returns OK when all new parameters have arrived;
  // kCancelled; kFailedPrecondition or kInvalidArgument if the push was refused; kAborted or
  // kUnavailable with the job's verdict ("rank 2 on node5 died 1.3 s ago (job digits, key ...)").
  Status Wait() const;
  // The same, but returns kDeadlineExceeded after `timeout`. The round continues; Wait() again.
  // After a timeout of a second or more it returns Explain().
  Status Wait(std::chrono::nanoseconds timeout) const;
  // Wait() with no time to wait. If the round is in flight, the kDeadlineExceeded says for which
  // ranks it waits, and which ranks wait for each other in a cycle, because they wait for rounds of
  // groups in different orders. Asks the daemon, for at most 2 s.
  Status Explain() const;
  // True if Wait() would return at once.
  bool Test() const;
  // Withdraws the push if none of it was sent: the key may then be pushed again. Returns
  // kFailedPrecondition if the push is in flight or complete.
  Status Cancel() const;

 private:
  friend class Key;
  friend class Job;
  friend struct client::RoundAccess;
  explicit Handle(Status refused);
  Handle(std::shared_ptr<client::KeyImpl> key, std::uint64_t ticket);

  std::shared_ptr<client::KeyImpl> key_;
  std::uint64_t ticket_ = 0;
  Status refused_;
  std::shared_ptr<const client::PoolRounds> pool_rounds_;  // not null: a Pool's operation
};

}  // namespace phub
