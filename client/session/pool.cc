// phub::Pool: pooled keys that take turns.
#include "phub/pool.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/session/fork.h"
#include "client/session/pool_checks.h"
#include "client/session/round_access.h"
#include "common/base/mapped_memory.h"
#include "common/base/units.h"

namespace phub {
namespace client {
namespace {

constexpr std::uint32_t kDepthMax = 64;
constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

// An operation after the checks.
struct PoolOperation {
  wire::RoundOperation operation = wire::RoundOperation::kPool;
  ElementType type{};
  std::uint64_t count = 0;
  const void* values = nullptr;  // null: this rank sends none
  void* results = nullptr;       // null: it receives none
  numeric::Reduction reduction{};
  Rank root{};
  std::uint32_t sequence = 0;
};

}  // namespace

class PoolImpl {
 public:
  // group: its name; empty for a pool of the whole job.
  PoolImpl(PoolOptions options, std::string group, std::vector<Key> keys, MappedMemory values,
           MappedMemory results)
      : options_(std::move(options)),
        group_(std::move(group)),
        keys_(std::move(keys)),
        tickets_(keys_.size(), 0),
        operation_of_(keys_.size(), 0),
        values_(std::move(values)),
        results_(std::move(results)) {}

  const PoolOptions& options() const { return options_; }

  Handle AllReduce(ConstElements values, Elements results, Operation operation) {
    const std::string place = Describe();
    const Result<numeric::Reduction> reduction =
        CheckPoolOperation(place, values, results, operation);
    if (!reduction.ok()) return RoundAccess::Refused(reduction.status());
    return Start({.type = values.type,
                  .count = values.count,
                  .values = values.data,
                  .results = results.data,
                  .reduction = *reduction});
  }

  Handle Broadcast(Elements values, std::uint32_t root) {
    const std::string place = Describe();
    Status status = CheckPoolBroadcast(place, Slot(0)->definition, values, root);
    if (!status.ok()) return RoundAccess::Refused(std::move(status));
    const bool sends = Slot(0)->job->rank() == root;
    return Start({.operation = wire::RoundOperation::kPoolMove,
                  .type = values.type,
                  .count = values.count,
                  .values = sends ? values.data : nullptr,
                  .results = sends ? nullptr : values.data,
                  .root = Rank{root}});
  }

  bool WouldWait(const ConstElements& values) const {
    const std::uint64_t rounds =
        IsKnown(values.type) ? std::max<std::uint64_t>(1, RoundsOf(values.type, values.count)) : 1;
    if (rounds > keys_.size()) return true;
    const std::uint64_t first = started_.load(std::memory_order_relaxed);
    for (std::uint64_t round = first; round < first + rounds; ++round)
      if (!Slot(round % keys_.size())->Idle()) return true;
    return false;
  }

  Status Remove(Job& job) {
    if (!group_.empty())
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("{} cannot be removed alone: remove the group", Describe()));
    const std::lock_guard lock(calls_);
    return job.RemoveKeys(keys_);
  }

 private:
  const std::shared_ptr<KeyImpl>& Slot(std::size_t index) const {
    return RoundAccess::KeyOf(keys_[index]);
  }

  std::string Describe() const {
    const std::string& job = Slot(0)->job->name();
    return group_.empty()
               ? fmt::format("pool {} of job {}", options_.name, job)
               : fmt::format("pool {} of group {} of job {}", options_.name, group_, job);
  }

  std::uint64_t RoundElements(ElementType type) const {
    return options_.capacity_bytes / numeric::ElementBytes(Numeric(type));
  }
  std::uint64_t RoundsOf(ElementType type, std::uint64_t count) const {
    const std::uint64_t most = RoundElements(type);
    return (count + most - 1) / most;
  }

  Handle Start(PoolOperation operation) {
    const std::lock_guard lock(calls_);
    operation.sequence = operations_ & wire::kPoolSequenceMask;
    return StartRounds(operation);
  }

  // The first round has what the others, which are full, leave over. So with the number of rounds
  // that follow, it shows the length of the whole operation, and ranks that differ in it fail
  // there.
  Handle StartRounds(const PoolOperation& operation) {
    const std::uint64_t most = RoundElements(operation.type);
    std::uint64_t left = RoundsOf(operation.type, operation.count) - 1;  // rounds that follow
    std::shared_ptr<PoolRounds> several;
    if (left > 0) several = std::make_shared<PoolRounds>();
    std::uint64_t offset = 0;
    std::uint64_t count = operation.count - left * most;
    for (;; --left, offset += count, count = most) {
      const std::size_t index = started_.load(std::memory_order_relaxed) % keys_.size();
      const std::shared_ptr<KeyImpl>& slot = Slot(index);
      if (Status status = AwaitTurn(index, operation, offset > 0); !status.ok())
        return RoundAccess::Refused(std::move(status));
      const Result<std::uint64_t> ticket = slot->Start(RoundOf(operation, offset, count, left));
      if (!ticket.ok()) return RoundAccess::Refused(ticket.status());
      tickets_[index] = *ticket;
      operation_of_[index] = operation.sequence;
      if (offset == 0) ++operations_;
      started_.fetch_add(1, std::memory_order_relaxed);
      if (left == 0)
        return RoundAccess::Started(slot, *ticket, several != nullptr ? several : one_round_);
      several->earlier.push_back({slot, *ticket});
    }
  }

  // Waits until the last round of this key is complete. After another error than a timeout the job
  // has ended, and the engine uses no memory any more. has_begun: so does an operation with rounds
  // in flight, since the other ranks will wait for the rest of it.
  Status AwaitTurn(std::size_t index, const PoolOperation& operation, bool has_begun) {
    KeyImpl& slot = *Slot(index);
    KeyImpl::Deadline deadline;
    if (options_.timeout.count() > 0)
      deadline = std::chrono::steady_clock::now() + std::min(options_.timeout, kForever);
    Status status = slot.Wait(tickets_[index], deadline);
    if (status.code() != StatusCode::kDeadlineExceeded || !slot.job->status().ok()) return status;
    Status late(StatusCode::kDeadlineExceeded, DescribeWaitOf(index, operation));
    if (!has_begun) return late;
    slot.job->GiveUp(std::move(late));
    return slot.Wait(tickets_[index], std::nullopt);
  }

  std::string DescribeWaitOf(std::size_t index, const PoolOperation& operation) const {
    const KeyImpl& slot = *Slot(index);
    const std::string why = slot.job->ExplainWait(slot.definition.name);
    const std::chrono::nanoseconds waited = std::min(options_.timeout, kForever);
    return fmt::format(
        "{}, rank {}: operation {} has waited {} (the pool's timeout) for a free round: operation "
        "{} has not completed, in key {}, and the pool's depth is {}; {}",
        Describe(), slot.job->rank(), operation.sequence, HumanDuration(waited.count()),
        operation_of_[index], slot.definition.name, keys_.size(),
        why.empty() ? "the daemon did not say for which ranks it waits" : why);
  }

  // Elements [offset, offset + count) of the operation; `left` rounds follow.
  static KeyImpl::Round RoundOf(const PoolOperation& operation, std::uint64_t offset,
                                std::uint64_t count, std::uint64_t left) {
    const std::uint64_t skipped = offset * numeric::ElementBytes(Numeric(operation.type));
    const auto more =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(left, wire::kPoolRoundsLeftMax));
    KeyImpl::Round round{.operation = operation.operation,
                         .root = operation.root,
                         .payload_type = Numeric(operation.type),
                         .pool = {.elements = count,
                                  .sequence = operation.sequence | more << wire::kPoolSequenceBits,
                                  .reduction = operation.reduction}};
    if (operation.values != nullptr)
      round.gradients = static_cast<const std::byte*>(operation.values) + skipped;
    if (operation.results != nullptr)
      round.parameters = static_cast<std::byte*>(operation.results) + skipped;
    return round;
  }

  const PoolOptions options_;
  const std::string group_;  // its name; empty: the pool belongs to the job
  const std::vector<Key> keys_;
  std::mutex calls_;                         // that start operations, and of Remove()
  std::vector<std::uint64_t> tickets_;       // each key's last round
  std::vector<std::uint32_t> operation_of_;  // and the number of its operation
  std::atomic<std::uint64_t> started_{0};    // rounds
  std::uint32_t operations_ = 0;
  const std::shared_ptr<const PoolRounds> one_round_ = std::make_shared<const PoolRounds>();
  // The keys' own, which their rounds never use: so it takes no memory.
  const MappedMemory values_;
  const MappedMemory results_;
};

namespace {

Status CheckOptions(const PoolOptions& options) {
  if (options.depth == 0 || options.depth > kDepthMax)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("pool {}: depth is {}; it must be 1 to {}", options.name,
                              options.depth, kDepthMax));
  if (options.timeout.count() < 0)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("pool {}: timeout is {} ms; it must be 0 (no limit) or more",
                              options.name, options.timeout.count()));
  constexpr std::uint64_t kLargest = 8;  // an element of type f64 or i64
  if (options.capacity_bytes < kLargest)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("pool {}: capacity_bytes is {}; it must be at least {}", options.name,
                              options.capacity_bytes, kLargest));
  return Status();
}

// What a pool's keys need before they are added.
struct PoolParts {
  MappedMemory values;
  MappedMemory results;
  std::vector<KeySpec> specs;
};

Result<PoolParts> Prepare(const PoolOptions& options) {
  if (InForkedChild()) return ForkedStatus();
  if (Status status = CheckOptions(options); !status.ok()) return status;
  PoolParts parts;
  for (MappedMemory* const each : {&parts.values, &parts.results}) {
    *each = MappedMemory::Allocate(options.capacity_bytes, MappedMemory::Backing::kOnTouch);
    if (!*each)
      return Status(
          StatusCode::kResourceExhausted,
          fmt::format("pool {}: cannot map {} bytes", options.name, options.capacity_bytes));
  }
  for (std::uint32_t index = 0; index < options.depth; ++index)
    parts.specs.push_back(
        {.name = fmt::format("{}/{}", options.name, index),
         .type = u8,
         .element_count = options.capacity_bytes,
         .options = {.collective = true,
                     .pooled = true,
                     .priority = 0,  // rounds are sent in the order of operations
                     .priority_class = options.priority_class,
                     .gradients = {parts.values.data(), options.capacity_bytes, u8},
                     .parameters = {parts.results.data(), options.capacity_bytes, u8}}});
  return parts;
}

}  // namespace
}  // namespace client

Result<Pool> Pool::Add(Job& job, const PoolOptions& options) {
  Result<client::PoolParts> parts = client::Prepare(options);
  if (!parts.ok()) return parts.status();
  Result<std::vector<Key>> keys = job.AddKeys(parts->specs);
  if (!keys.ok()) return keys.status();
  return Pool(std::make_shared<client::PoolImpl>(
      options, "", *std::move(keys), std::move(parts->values), std::move(parts->results)));
}

Result<Pool> Pool::Add(Group& group, const PoolOptions& options) {
  Result<client::PoolParts> parts = client::Prepare(options);
  if (!parts.ok()) return parts.status();
  Result<std::vector<Key>> keys = group.AddKeys(parts->specs);
  if (!keys.ok()) return keys.status();
  return Pool(std::make_shared<client::PoolImpl>(options, group.name(), *std::move(keys),
                                                 std::move(parts->values),
                                                 std::move(parts->results)));
}

Pool::Pool(std::shared_ptr<client::PoolImpl> state) : impl_(std::move(state)) {}
Pool::~Pool() = default;
Pool::Pool(const Pool& other) = default;
Pool& Pool::operator=(const Pool& other) = default;
Pool::Pool(Pool&& other) noexcept = default;
Pool& Pool::operator=(Pool&& other) noexcept = default;

const std::string& Pool::name() const { return impl_->options().name; }
std::uint64_t Pool::capacity_bytes() const { return impl_->options().capacity_bytes; }
std::uint32_t Pool::depth() const { return impl_->options().depth; }

Handle Pool::AllReduce(ConstElements values, Elements results, Operation operation) {
  if (client::InForkedChild()) return client::RoundAccess::Refused(client::ForkedStatus());
  return impl_->AllReduce(values, results, operation);
}

Handle Pool::Broadcast(Elements values, std::uint32_t root) {
  if (client::InForkedChild()) return client::RoundAccess::Refused(client::ForkedStatus());
  return impl_->Broadcast(values, root);
}

Handle Broadcast(const Key& key, Elements values, std::uint32_t root, std::uint32_t sequence) {
  if (client::InForkedChild()) return client::RoundAccess::Refused(client::ForkedStatus());
  const std::shared_ptr<client::KeyImpl>& slot = client::RoundAccess::KeyOf(key);
  const std::string place = fmt::format("key {} of job {}", key.name(), slot->job->name());
  Status status = client::CheckBroadcastRound(place, slot->definition, values, root);
  if (!status.ok()) return client::RoundAccess::Refused(std::move(status));
  const bool sends = slot->job->rank() == root;
  const Result<std::uint64_t> ticket =
      slot->Start({.operation = wire::RoundOperation::kPoolMove,
                   .root = Rank{root},
                   .payload_type = client::Numeric(values.type),
                   .gradients = sends ? values.data : nullptr,
                   .parameters = sends ? nullptr : values.data,
                   .pool = {.elements = values.count, .sequence = sequence}});
  if (!ticket.ok()) return client::RoundAccess::Refused(ticket.status());
  return client::RoundAccess::Started(slot, *ticket, nullptr);
}

bool CanBroadcast(const Key& key) {
  const client::KeyDefinition& definition = client::RoundAccess::KeyOf(key)->definition;
  return definition.pooled && definition.why_no_broadcasts.empty();
}

bool Pool::WouldWait(ConstElements values) const {
  return !client::InForkedChild() && impl_->WouldWait(values);
}

Status Pool::Remove(Job& job) {
  if (client::InForkedChild()) return client::ForkedStatus();
  return impl_->Remove(job);
}

}  // namespace phub
