// A pool: all-reduces and broadcasts of any element type and length, next to training.
//
//   auto pool = phub::Pool::Add(*job, {.name = "metrics", .capacity_bytes = 1 << 20, .depth = 4});
//   phub::Handle summed = pool->AllReduce(std::span<const float>(losses), std::span(sums));
//   phub::Handle greatest = pool->AllReduce(std::span<const double>(times), std::span(longest),
//                                           phub::Operation::kMax);
//   phub::Handle same = pool->Broadcast(std::span(seeds), /*root=*/0);
//   phub::Status status = summed.Wait();
//
// What the daemon holds for a pool is reserved when the pool is added. Operations make no call to
// the daemon and add no keys. Their rounds are outside iterations and checkpoints, like those of
// collective keys (KeyOptions::collective), with the same limits: not in jobs with restart=true or
// sum=kFixed, and in jobs of several racks only in groups inside one rack (group.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "phub/client.h"
#include "phub/group.h"

namespace phub {

namespace client {  // not part of the API
class PoolImpl;
}  // namespace client

// The same on all ranks. The daemon holds up to three times capacity_bytes * depth.
struct PoolOptions {
  std::string name = {};  // the pool has the keys name/0 to name/<depth - 1>
  // Most bytes of one round. Longer operations take several rounds.
  std::uint64_t capacity_bytes = 4 << 20;
  std::uint32_t depth = 4;                           // rounds that may be in flight: 1 to 64
  std::optional<PriorityClass> priority_class = {};  // see KeyOptions
  // How long an operation may wait for a free round. Zero: without limit. Each rank may have its
  // own.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
};

// A cheap reference: copies refer to the same pool. Any thread may call any function, but ranks
// must start the operations of a pool in the same order, so one thread should start them.
class PHUB_API Pool {
 public:
  // Adds the pool in one round trip, like Job::AddKeys(): every rank makes the same calls of both
  // in the same order. If it fails, nothing is added.
  static Result<Pool> Add(Job& job, const PoolOptions& options);
  // The same for a group, whose members make these calls. It is removed with the group.
  static Result<Pool> Add(Group& group, const PoolOptions& options);
  ~Pool();
  Pool(const Pool& other);
  Pool& operator=(const Pool& other);
  Pool(Pool&& other) noexcept;
  Pool& operator=(Pool&& other) noexcept;

  const std::string& name() const;
  std::uint64_t capacity_bytes() const;
  std::uint32_t depth() const;

  // Starts an operation: combines the ranks' `values` into as many `results` of the same type,
  // which are the same memory or do not overlap them. phub uses both until the handle is complete;
  // after an error the contents of `results` are undefined. Every rank starts the same operations
  // in the same order. Ranks whose operations differ in type, operation or length end the job with
  // an error that names both.
  //
  // An operation of up to capacity_bytes is one round, a longer one several. Round number n of the
  // pool uses key n % depth. If that key still has a round in flight, AllReduce() waits until it is
  // complete: so at most `depth` rounds are in flight, and an operation of more than `depth` rounds
  // waits for its own first ones. The handle completes with the last round, and cannot be
  // cancelled.
  //
  // If it has waited for PoolOptions::timeout, as ranks do that wait for each other in crossed
  // order, Handle::Wait() returns kDeadlineExceeded. The error names the operation in flight, the
  // ranks that it waits for, and a cycle of ranks, as the daemon knows them. Nothing was started,
  // so the same operation can be started again. If only some of its rounds were, the job ends with
  // this error.
  [[nodiscard]] Handle AllReduce(ConstElements values, Elements results,
                                 Operation operation = Operation::kSum);
  // Starts an operation that copies rank root's `values` to those of all other ranks, byte by byte.
  // The root sends its values once, and the daemon sends them to each of the others. Rules and
  // errors are those of AllReduce(); root is a rank of the job, and of the group if the pool has
  // one. In a group of two ranks these are messages, in order, and at most `depth` rounds of them
  // are in flight. The handle completes at the root when all other ranks have started the
  // operation.
  [[nodiscard]] Handle Broadcast(Elements values, std::uint32_t root);
  // True if an operation with these values would wait for a round now; without values, one round.
  bool WouldWait(ConstElements values = {}) const;

  // Gives back what the job holds for the pool, like Job::RemoveKeys(), whose rules apply to the
  // pool's keys: every rank calls it, and nothing that was added later may be left. Pools of groups
  // are refused.
  Status Remove(Job& job);

 private:
  explicit Pool(std::shared_ptr<client::PoolImpl> state);
  std::shared_ptr<client::PoolImpl> impl_;
};

// For callers that make pools of their own: a broadcast of up to the capacity as a round of a
// pooled key. Key::AllReduce() says what `sequence` is, Pool::Broadcast() the rest. Not over pooled
// keys of older daemons: CanBroadcast() is false there.
[[nodiscard]] PHUB_API Handle Broadcast(const Key& key, Elements values, std::uint32_t root,
                                        std::uint32_t sequence);
PHUB_API bool CanBroadcast(const Key& key);

}  // namespace phub
