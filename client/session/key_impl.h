// The state of a key for callers: its memory and its current round. Shared by every Key and Handle
// that refers to it. Receives the engine's reports.
//
// Every push has a ticket (1, 2, 3, ...). Rounds of a key complete in that order, one at a time, so
// one number shows for every handle whether it is complete, and a push allocates nothing.
//
// Locks: callers take mutex_. The engine's thread takes it only if a thread waits.
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
#include "client/session/completion_queue.h"
#include "client/session/first_push.h"
#include "client/session/gradient_encoder.h"
#include "client/session/key_definition.h"
#include "client/session/key_owner.h"
#include "client/session/timeline.h"
#include "phub/client.h"

namespace phub::client {

struct KeyImpl final : RoundListener, std::enable_shared_from_this<KeyImpl> {
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  KeyImpl(std::shared_ptr<KeyOwner> job_in, KeyIndex index_in, KeyDefinition definition_in);

  struct Round {
    wire::RoundOperation operation = wire::RoundOperation::kReduce;
    Rank root{};
    numeric::ElementType payload_type{};  // type of the gradients, or of the root's values
    const void* gradients = nullptr;      // null: no payload
    void* parameters = nullptr;
    bool parameters_shared = false;
    bool skip = false;
    wire::PoolRound pool{};  // kPool
  };
  // Returns the round's ticket, or the reason why the push is refused.
  Result<std::uint64_t> Start(const Round& round);
  // Starts a kAssign round that fills the key's own parameters.
  Result<std::uint64_t> StartAssign(Rank root, numeric::ElementType payload_type,
                                    const void* values);
  // Starts a round, on every rank, that replaces the key's state by the state that the daemons have
  // loaded. Afterwards the key is at the job's `iteration`, after `reductions` reductions, and the
  // next push uses `hyper_parameters`.
  Result<std::uint64_t> StartLoad(std::uint64_t iteration, std::uint64_t reductions,
                                  const wire::HyperParameters& hyper_parameters);
  // In a process that replaces a dead one: fetches the parameters of `version`, which is after
  // `reductions` reductions. hyper_version: the one that this version's round named. REQUIRES:
  // nothing was pushed.
  struct ResumePoint {
    Iteration version{};
    std::uint64_t reductions = 0;
    HyperVersion hyper_version{};
    wire::HyperParameters hyper_parameters{};
  };
  Result<std::uint64_t> Resume(const ResumePoint& point);

  // The ticket of the last push that was not withdrawn.
  Result<std::uint64_t> LastPushed();
  // True after Resume() or StartLoad(): the key has values and needs no Initialize().
  bool has_values() const { return has_values_.load(std::memory_order_acquire); }
  // The job's iterations that this key has completed; the second counts the round in flight, too.
  // 0 for collective keys.
  std::uint64_t job_iteration() const { return job_iteration_.load(std::memory_order_acquire); }
  std::uint64_t pushed_iteration() const;
  // True if no round is in flight.
  bool Idle() const;
  struct OpenRound {
    const std::string* key = nullptr;  // the definition's name
    std::uint64_t iteration = 0;
    const char* operation = nullptr;  // "reduce", "assign", ...; static storage
    TimeNs since = 0;                 // the push, on the system clock
  };
  // The round in flight; nullopt: none is.
  std::optional<OpenRound> Open() const;

  Status Wait(std::uint64_t ticket, const Deadline& deadline);
  bool Test(std::uint64_t ticket) const;
  Status Cancel(std::uint64_t ticket);
  // Waits until no round is in flight. False: the deadline passed or the job ended before.
  bool WaitIdle(std::chrono::steady_clock::time_point deadline);

  // Refuses all later rounds. An error, and nothing changes, if a round is in flight or the key was
  // removed.
  Status BeginRemoval();
  void CancelRemoval();  // the daemons have refused it
  // Waits until the engine does not use the key any more. False: the job has ended before.
  bool AwaitRemoved();

  // Reports a round to a queue, once, when Test(ticket) is true. `one` has one element.
  void Watch(WatchedRounds one);
  // Wakes all waiting threads. Called after JobImpl::ended() became true.
  void WakeAll();

  // RoundListener, on the engine's thread.
  void OnSent(bool all) override { trace.Sent(all); }
  void OnRoundComplete(std::uint64_t ticket, Iteration iteration, bool skipped) override;
  void OnCancelAnswered(std::uint64_t ticket, bool withdrawn) override;
  void OnRemoved() override;

  std::string Place() const;            // "key fc1.weight of job digits, rank 2"
  const std::shared_ptr<KeyOwner> job;  // owns this key, too, until the rank leaves
  const KeyIndex index;

 private:
  // What the engine's thread accesses at the end of a round, side by side: a model has thousands of
  // keys, and each cache line costs a miss.
  std::atomic<int> waiting_{0};
  std::atomic<std::uint64_t> done_ticket_{0};  // rounds up to this one are complete or withdrawn
  std::atomic<std::uint64_t> job_iteration_;
  // job_iteration_ after the round in flight. Written only before the round starts, when it is
  // withdrawn, or by the engine's thread, which reads it without the lock.
  std::uint64_t job_iteration_after_;
  std::atomic<std::uint64_t> withdrawn_count_{0};  // written before done_ticket_, holding mutex_

 public:
  std::atomic<std::uint64_t> iteration{0};
  KeyTrace trace;
  FirstPush first_push;
  const KeyDefinition definition;

 private:
  static constexpr std::size_t kWithdrawnRemembered = 64;

  // Starts a round with `command`. job_iteration_after: job_iteration() once it is complete.
  Result<std::uint64_t> Begin(Command command, std::uint64_t job_iteration_after);
  void NoteValues();
  Timeline::Record TraceOf(const Command& command) const;  // REQUIRES: mutex_ is held
  bool Done(std::uint64_t ticket) const;
  bool Withdrawn(std::uint64_t ticket) const;     // REQUIRES: mutex_ is held
  Status Outcome(std::uint64_t ticket);           // after the round is done or the job has ended
  Status Verdict(const char* what_it_did) const;  // after the job has ended
  void ReportWatched();                           // REQUIRES: mutex_ is held
  template <typename Predicate>
  bool Block(std::unique_lock<std::mutex>& lock, const Deadline& deadline, Predicate predicate);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> has_values_{false};
  std::unique_ptr<GradientEncoder> encoder_;  // null without compression; used between rounds
  bool removed_ = false;                      // BeginRemoval() was called
  bool engine_removed_ = false;               // the engine does not have the key any more
  std::uint64_t last_ticket_ = 0;
  const char* last_operation_ = nullptr;  // of last_ticket_; its push was at pushed_at_
  TimeNs pushed_at_ = 0;
  std::uint64_t pushed_ticket_ = 0;  // for Key::Pull()
  std::uint64_t pushed_ticket_before_ = 0;
  std::uint64_t cancels_asked_ = 0;
  std::uint64_t cancels_answered_ = 0;
  std::array<std::uint64_t, kWithdrawnRemembered> withdrawn_{};  // a ring
  WatchedRounds watched_;                                        // each counts in waiting_
};

}  // namespace phub::client
