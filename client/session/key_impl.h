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
#include <string>

#include "client/commands.h"
#include "client/session/key_definition.h"
#include "client/session/key_owner.h"
#include "phub/client.h"

namespace phub::client {

struct KeyImpl final : RoundListener {
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  KeyImpl(std::shared_ptr<KeyOwner> job_in, KeyIndex index_in, KeyDefinition definition_in);

  struct Round {
    wire::RoundOperation operation = wire::RoundOperation::kReduce;
    Rank root{};
    numeric::ElementType payload_type{};  // of what the root sends; of kReduce, the gradients' type
    const void* gradients = nullptr;      // null: no payload
    void* parameters = nullptr;
    bool parameters_shared = false;
    bool skip = false;
  };
  // The ticket, or why the push is refused.
  Result<std::uint64_t> Start(const Round& round);
  // The same round with the key's own parameters.
  Result<std::uint64_t> StartAssign(Rank root, numeric::ElementType payload_type,
                                    const void* values);
  // Saved state that the daemons have been brought takes the place of the key's own: a round that
  // every rank runs. The key is then at the job's `iteration`, after so many reductions of its own,
  // and its next push has these hyper-parameters.
  Result<std::uint64_t> StartLoad(std::uint64_t iteration, std::uint64_t reductions,
                                  const wire::HyperParameters& hyper_parameters);
  // A process that took the place of one that died starts with what this one had at `version`,
  // after so many reductions. record: named by that version's round. REQUIRES: nothing was pushed.
  struct ResumePoint {
    Iteration version{};
    std::uint64_t reductions = 0;
    HyperVersion hyper_version{};
    wire::HyperParameters hyper_parameters{};
  };
  Result<std::uint64_t> Resume(const ResumePoint& point);

  // Ticket of the last push that was not withdrawn.
  Result<std::uint64_t> LastPushed();
  // It has values that every rank has, by Resume() or StartLoad(): they need not be initialized.
  bool has_values() const { return has_values_.load(std::memory_order_acquire); }
  // The job's iterations that this key has completed, and (with what is under way) will have.
  std::uint64_t job_iteration() const { return job_iteration_.load(std::memory_order_acquire); }
  std::uint64_t pushed_iteration() const;
  // No round is under way.
  bool Idle() const;

  Status Wait(std::uint64_t ticket, const Deadline& deadline);
  bool Test(std::uint64_t ticket) const;
  Status Cancel(std::uint64_t ticket);
  // True once no round is under way; false when the time was up or the job ended before.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // The job ended: wakes whoever waits. After JobImpl::ended() is true.
  void WakeAll();

  // RoundListener, on the engine's thread.
  void OnRoundComplete(std::uint64_t ticket, Iteration iteration, bool skipped) override;
  void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) override;

  const std::shared_ptr<KeyOwner> job;  // until the job is left, it owns this key as well
  const KeyIndex index;
  const KeyDefinition definition;
  std::atomic<std::uint64_t> iteration{0};

 private:
  static constexpr std::size_t kWithdrawnRemembered = 64;

  // Makes `command` a round under way; says what it makes of the iterations.
  Result<std::uint64_t> Begin(Command command, std::uint64_t job_iteration_after);
  bool Done(std::uint64_t ticket) const;
  bool Withdrawn(std::uint64_t ticket) const;     // with mutex_
  Status Outcome(std::uint64_t ticket);           // of a round that is done, or of an ended job
  Status Verdict(const char* what_it_did) const;  // of an ended job
  std::string Place() const;                      // "key fc1.weight of job digits, rank 2"
  template <typename Predicate>
  bool Block(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Predicate predicate);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> waiting_{0};
  std::atomic<std::uint64_t> done_ticket_{0};  // rounds up to it are complete or withdrawn
  std::atomic<bool> has_values_{false};
  std::atomic<std::uint64_t> job_iteration_;
  // When the round under way is complete. Written before it starts, and else only when it is
  // withdrawn: the engine's thread reads it without the lock.
  std::uint64_t job_iteration_after_;
  std::uint64_t last_ticket_ = 0;
  std::uint64_t pushed_ticket_ = 0;  // for Pull
  std::uint64_t pushed_ticket_before_ = 0;
  std::uint64_t cancels_asked_ = 0;
  std::uint64_t cancels_answered_ = 0;
  std::array<std::uint64_t, kWithdrawnRemembered> withdrawn_{};  // a ring
  std::size_t withdrawn_count_ = 0;
};

}  // namespace phub::client
