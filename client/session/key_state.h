// A key as callers have it: its memory, and the round it is in. Shared by every Key and Handle that
// names it; reports back from the engine's thread arrive here.
//
// A push gets a ticket (1, 2, 3, ...); rounds of a key complete in that order, one at a time, so
// one number says of every handle whether it is complete, and a push allocates nothing.
//
// Locks: mutex_ is taken by callers, and by the engine's thread only when somebody waits.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/commands.h"
#include "common/base/mapped_memory.h"
#include "phub/client.h"

namespace phub::client {

class JobState;

// What makes a key, checked.
struct KeyDefinition {
  std::string name;
  std::uint64_t element_count = 0;
  Optimizer optimizer;
  wire::HyperParameters hyper_parameters{};
  std::int32_t priority = 0;
  std::vector<std::uint64_t> tensors;  // at least one
  MappedMemory owned_gradients;
  MappedMemory owned_parameters;
  std::span<float> gradients;
  std::span<float> parameters;
};

struct KeyState final : RoundListener {
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  KeyState(std::shared_ptr<JobState> job_in, KeyIndex index_in, KeyDefinition definition_in);

  struct Round {
    wire::RoundOperation operation = wire::RoundOperation::kReduce;
    Rank root{};
    const float* gradients = nullptr;  // null: no payload
    float* parameters = nullptr;
  };
  // The ticket, or why the push is refused.
  Result<std::uint64_t> Start(const Round& round);
  // Ticket of the last push that was not withdrawn.
  Result<std::uint64_t> LastPushed();

  Status Wait(std::uint64_t ticket, const Deadline& deadline);
  bool Test(std::uint64_t ticket) const;
  Status Cancel(std::uint64_t ticket);
  // True once no round is under way; false when the time was up or the job ended before.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // The job ended: wakes whoever waits. After JobState::ended() is true.
  void WakeAll();

  // RoundListener, on the engine's thread.
  void OnRoundComplete(std::uint64_t ticket, Iteration iteration) override;
  void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) override;

  const std::shared_ptr<JobState> job;  // until the job is left, it owns this key as well
  const KeyIndex index;
  const KeyDefinition definition;
  std::atomic<std::uint64_t> iteration{0};

 private:
  static constexpr std::size_t kWithdrawnRemembered = 64;

  bool Done(std::uint64_t ticket) const;
  bool Withdrawn(std::uint64_t ticket) const;  // with mutex_
  Status Outcome(std::uint64_t ticket);        // of a round that is done, or of an ended job
  std::string Place() const;                   // "key fc1.weight of job digits, rank 2"
  template <typename Predicate>
  bool Block(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Predicate predicate);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> waiting_{0};
  std::atomic<std::uint64_t> done_ticket_{0};  // rounds up to it are complete or withdrawn
  std::uint64_t last_ticket_ = 0;
  std::uint64_t pushed_ticket_ = 0;  // for Pull
  std::uint64_t pushed_ticket_before_ = 0;
  std::uint64_t cancels_asked_ = 0;
  std::uint64_t cancels_answered_ = 0;
  std::array<std::uint64_t, kWithdrawnRemembered> withdrawn_{};  // a ring
  std::size_t withdrawn_count_ = 0;
};

}  // namespace phub::client
