#include "client/session/key_impl.h"

#include <fmt/core.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "common/base/check.h"

namespace phub::client {
namespace {

// Yields before blocking: a small round often completes meanwhile, and a wake costs more. Must be
// as many as the engine's, or the two threads block alternately.
constexpr int kYieldsBeforeBlocking = 16;

const char* OperationText(const Command& command) {
  if (command.kind == Command::Kind::kResume) return "resume";
  switch (command.operation) {
    case wire::RoundOperation::kReduce: return "reduce";
    case wire::RoundOperation::kAssign: return "assign";
    case wire::RoundOperation::kLoad: return "load";
    case wire::RoundOperation::kMove: return "move";
    case wire::RoundOperation::kPool: return "pooled";
    case wire::RoundOperation::kPoolMove: return "pooled broadcast";
  }
  return "unknown";
}

}  // namespace

KeyImpl::KeyImpl(std::shared_ptr<KeyOwner> job_in, KeyIndex index_in, KeyDefinition definition_in)
    : job(std::move(job_in)),
      index(index_in),
      job_iteration_(definition_in.first_iteration),
      job_iteration_after_(definition_in.first_iteration),
      first_push(definition_in),
      definition(std::move(definition_in)) {
  if (!definition.encoding.none()) encoder_ = std::make_unique<GradientEncoder>(definition, index);
}

std::string KeyImpl::Place() const {
  return fmt::format("key {} of job {}, rank {}", definition.name, job->name(), job->rank());
}

bool KeyImpl::Done(std::uint64_t ticket) const {
  return done_ticket_.load(std::memory_order_seq_cst) >= ticket;
}

bool KeyImpl::Withdrawn(std::uint64_t ticket) const {
  return std::find(withdrawn_.begin(), withdrawn_.end(), ticket) != withdrawn_.end();
}

bool KeyImpl::Idle() const {
  const std::lock_guard lock(mutex_);
  return Done(last_ticket_);
}

std::optional<KeyImpl::OpenRound> KeyImpl::Open() const {
  const std::lock_guard lock(mutex_);
  if (Done(last_ticket_)) return std::nullopt;
  return OpenRound{&definition.name, iteration.load(std::memory_order_relaxed) + 1, last_operation_,
                   pushed_at_};
}

std::uint64_t KeyImpl::pushed_iteration() const {
  const std::lock_guard lock(mutex_);
  return job_iteration_after_;
}

Result<std::uint64_t> KeyImpl::Begin(Command command, std::uint64_t job_iteration_after) {
  std::unique_lock lock(mutex_);
  if (!job->status().ok()) return Verdict("was about to be pushed in");
  if (removed_)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: the key was removed with RemoveKeys", Place()));
  if (!Done(last_ticket_))
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: iteration {} is still in flight; wait for its handle before "
                              "the next push",
                              Place(), iteration.load(std::memory_order_relaxed) + 1));
  if (encoder_ != nullptr && command.kind == Command::Kind::kPush &&
      command.operation == wire::RoundOperation::kReduce) {
    encoder_->Encode(reinterpret_cast<const float*>(command.gradients),
                     iteration.load(std::memory_order_relaxed) + 1, command.skip);
    command.gradients = definition.encoded;
  }
  pushed_ticket_before_ = pushed_ticket_;
  pushed_ticket_ = ++last_ticket_;
  job_iteration_after_ = job_iteration_after;
  last_operation_ = OperationText(command);
  pushed_at_ = SystemClock().Now();
  command.key = index;
  command.ticket = last_ticket_;
  if (trace.on()) trace.Push(last_ticket_, TraceOf(command));
  // Release the lock: Submit() may wait for the engine's thread, which may need it.
  lock.unlock();
  job->Submit(command);
  return command.ticket;
}

Timeline::Record KeyImpl::TraceOf(const Command& command) const {
  const bool is_pooled = wire::IsPooled(command.operation);
  const std::uint64_t pooled_bytes =
      command.pool.elements * numeric::ElementBytes(command.payload_type);
  const std::uint64_t elements = is_pooled ? command.pool.elements
                                 : wire::IsIteration(command.operation)
                                     ? definition.gradient_count()
                                     : definition.element_count;
  const bool sends = command.gradients != nullptr, receives = command.parameters != nullptr;
  const bool encodes = encoder_ != nullptr && command.operation == wire::RoundOperation::kReduce;
  const std::uint64_t bytes =
      encodes ? definition.encoded_bytes() : elements * numeric::ElementBytes(command.payload_type);
  // Collective keys are outside the job's iterations: their rounds are counted.
  const std::uint64_t rounds = iteration.load(std::memory_order_relaxed);
  return {.pooled = is_pooled,
          .pool_operation = command.pool.sequence & wire::kPoolSequenceMask,
          .begin = pushed_at_,
          .round = rounds + 1,
          .iteration = definition.collective ? rounds : job_iteration(),
          .bytes_up = sends ? bytes : 0,
          .bytes_down = is_pooled ? (receives ? pooled_bytes : 0) : definition.parameters_bytes(),
          .operation = last_operation_};
}

Result<std::uint64_t> KeyImpl::Start(const Round& round) {
  const bool is_pooled = wire::IsPooled(round.operation);
  if (definition.pooled != is_pooled)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{} is {}: use {}", Place(), is_pooled ? "not pooled" : "pooled",
                              is_pooled ? "PushPull()" : "AllReduce()"));
  const bool reduces = wire::IsIteration(round.operation);
  reduces ? first_push.Check(definition, *job) : first_push.NoteValues();
  return Begin({.kind = Command::Kind::kPush,
                .operation = round.operation,
                .root = round.root,
                .payload_type = round.payload_type,
                .gradients = static_cast<const std::byte*>(round.gradients),
                .parameters = static_cast<std::byte*>(round.parameters),
                .parameters_shared = round.parameters_shared,
                .pool = round.pool,
                .skip = round.skip},
               job_iteration() + (reduces && !definition.collective ? 1 : 0));
}

Result<std::uint64_t> KeyImpl::StartAssign(Rank root, numeric::ElementType payload_type,
                                           const void* values) {
  if (definition.parts.movement != KeyMovement::kAllReduce)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{} has movement {}: only keys with movement all_reduce can be "
                              "initialized or broadcast",
                              Place(), ToString(definition.parts.movement)));
  return Start({.operation = wire::RoundOperation::kAssign,
                .root = root,
                .payload_type = payload_type,
                .gradients = values,
                .parameters = definition.parameters.data,
                .parameters_shared = definition.parameters_shared});
}

Result<std::uint64_t> KeyImpl::StartLoad(std::uint64_t iteration_in, std::uint64_t reductions,
                                         const wire::HyperParameters& hyper_parameters) {
  if (reductions > iteration_in)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the checkpoint is of iteration {}, but has {} reductions of "
                              "this key",
                              Place(), iteration_in, reductions));
  auto ticket = Begin({.kind = Command::Kind::kPush,
                       .operation = wire::RoundOperation::kLoad,
                       .payload_type = definition.parameter_type,
                       .reductions = reductions,
                       .first_iteration = iteration_in - reductions,
                       .parameters = static_cast<std::byte*>(definition.parameters.data),
                       .parameters_shared = definition.parameters_shared},
                      iteration_in);
  if (!ticket.ok()) return ticket;
  job->Submit({.kind = Command::Kind::kSetHyperParameters,
               .key = index,
               .hyper_parameters = hyper_parameters});
  NoteValues();
  return ticket;
}

void KeyImpl::NoteValues() {
  first_push.NoteValues();
  has_values_.store(true, std::memory_order_release);
}

Result<std::uint64_t> KeyImpl::Resume(const ResumePoint& point) {
  if (point.version == Iteration{}) return std::uint64_t{0};  // no round yet: like a new key
  auto ticket = Begin({.kind = Command::Kind::kResume,
                       .version = point.version,
                       .reductions = point.reductions,
                       .first_iteration = definition.first_iteration,
                       .hyper_version = point.hyper_version,
                       .parameters = static_cast<std::byte*>(definition.parameters.data),
                       .parameters_shared = definition.parameters_shared,
                       .hyper_parameters = point.hyper_parameters},
                      definition.first_iteration + point.reductions);
  if (ticket.ok()) NoteValues();
  return ticket;
}

Result<std::uint64_t> KeyImpl::LastPushed() {
  const std::lock_guard lock(mutex_);
  if (pushed_ticket_ == 0)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: Pull() was called before the first push", Place()));
  return pushed_ticket_;
}

template <typename Predicate>
bool KeyImpl::Block(std::unique_lock<std::mutex>& lock, const Deadline& deadline,
                    Predicate predicate) {
  if (deadline) return changed_.wait_until(lock, *deadline, predicate);
  changed_.wait(lock, predicate);
  return true;
}

Status KeyImpl::Wait(std::uint64_t ticket, const Deadline& deadline) {
  if (Test(ticket)) return Outcome(ticket);
  const KeyTrace::Waiting recorded(trace, ticket);
  for (int i = 0; i < kYieldsBeforeBlocking && !Test(ticket); ++i) std::this_thread::yield();
  if (!Test(ticket)) {
    // The engine's thread writes done_ticket_ and then reads waiting_. This thread writes waiting_
    // and then reads done_ticket_. So at least one of them sees the other's write.
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    std::unique_lock lock(mutex_);
    const bool complete = Block(lock, deadline, [&] { return Test(ticket); });
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
    if (!complete)
      return Status(StatusCode::kDeadlineExceeded,
                    fmt::format("{}: iteration {} is still in flight", Place(),
                                iteration.load(std::memory_order_relaxed) + 1));
  }
  return Outcome(ticket);
}

Status KeyImpl::Outcome(std::uint64_t ticket) {
  if (Done(ticket)) {
    if (withdrawn_count_.load(std::memory_order_relaxed) == 0) return Status();
    const std::lock_guard lock(mutex_);
    if (!Withdrawn(ticket)) return Status();
    return Status(StatusCode::kCancelled, fmt::format("{}: the push was withdrawn", Place()));
  }
  return Verdict("was waiting in");
}

// The job's verdict, with the state of this key at that time.
Status KeyImpl::Verdict(const char* what_it_did) const {
  const Status verdict = job->status();
  PHUB_CHECK(!verdict.ok(), "key={}", definition.name);
  if (job->verdict_key() == definition.name) return verdict;
  return Status(verdict.code(),
                fmt::format("{}; key {} {} iteration {}", verdict.message(), definition.name,
                            what_it_did, iteration.load(std::memory_order_relaxed) + 1),
                verdict.subject());
}

bool KeyImpl::Test(std::uint64_t ticket) const { return Done(ticket) || job->ended(); }

Status KeyImpl::Cancel(std::uint64_t ticket) {
  if (definition.error_feedback)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: pushes with error feedback cannot be cancelled, since the next "
                              "push has only what they left out",
                              Place()));
  std::unique_lock lock(mutex_);
  if (!Done(ticket) && !job->ended()) {
    const std::uint64_t asked = ++cancels_asked_;
    lock.unlock();
    job->Submit({.kind = Command::Kind::kCancel, .key = index, .ticket = ticket});
    lock.lock();
    waiting_.fetch_add(1, std::memory_order_seq_cst);
    changed_.wait(lock, [&] { return cancels_answered_ >= asked || job->ended(); });
    waiting_.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (Withdrawn(ticket)) return Status();
  const char* why = Done(ticket)   ? "the round is complete"
                    : job->ended() ? "the job has ended"
                                   : "a part of the push was already sent";
  return Status(StatusCode::kFailedPrecondition,
                fmt::format("{}: too late to cancel, {}", Place(), why));
}

bool KeyImpl::WaitIdle(std::chrono::steady_clock::time_point deadline) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  std::unique_lock lock(mutex_);
  Block(lock, deadline, [&] { return Test(last_ticket_); });
  waiting_.fetch_sub(1, std::memory_order_seq_cst);
  return Done(last_ticket_);
}

// A call of Cancel() that has not been answered still sends a command for the key.
Status KeyImpl::BeginRemoval() {
  const std::lock_guard lock(mutex_);
  if (removed_)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: the key was removed before", Place()));
  if (!Done(last_ticket_) || cancels_asked_ > cancels_answered_)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: iteration {} is still in flight; wait for its handle before "
                              "RemoveKeys",
                              Place(), iteration.load(std::memory_order_relaxed) + 1));
  removed_ = true;
  return Status();
}

void KeyImpl::CancelRemoval() {
  const std::lock_guard lock(mutex_);
  removed_ = false;
}

bool KeyImpl::AwaitRemoved() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return engine_removed_ || job->ended(); });
  return engine_removed_;
}

// Notifies with the lock: the key may be destroyed as soon as a thread finds it removed.
void KeyImpl::OnRemoved() {
  const std::lock_guard lock(mutex_);
  engine_removed_ = true;
  changed_.notify_all();
}

void KeyImpl::WakeAll() {
  {
    const std::lock_guard lock(mutex_);
    ReportWatched();
  }
  changed_.notify_all();
}

void KeyImpl::Watch(WatchedRounds one) {
  waiting_.fetch_add(1, std::memory_order_seq_cst);
  const std::lock_guard lock(mutex_);
  watched_.splice(watched_.end(), one);
  ReportWatched();
}

// On the engine's thread, too: moves nodes between lists, so it does not allocate.
void KeyImpl::ReportWatched() {
  for (auto each = watched_.begin(); each != watched_.end();) {
    const auto next = std::next(each);
    if (Test(each->ticket)) {
      WatchedRounds one;
      one.splice(one.end(), watched_, each);
      one.front().key = shared_from_this();
      waiting_.fetch_sub(1, std::memory_order_seq_cst);
      // The list may hold the last reference to the queue, so it must not be a part of the queue.
      const std::shared_ptr<RoundSink> queue = std::move(one.front().queue);
      queue->Report(one);
    }
    each = next;
  }
}

void KeyImpl::OnRoundComplete(std::uint64_t ticket, Iteration completed, bool skipped) {
  iteration.store(completed.value, std::memory_order_relaxed);
  if (trace.on()) trace.Complete(skipped);
  if (skipped) {
    const std::lock_guard lock(mutex_);
    job_iteration_after_ = job_iteration_.load(std::memory_order_relaxed);
  }
  job_iteration_.store(job_iteration_after_, std::memory_order_release);
  done_ticket_.store(ticket, std::memory_order_seq_cst);
  if (waiting_.load(std::memory_order_seq_cst) > 0) WakeAll();
}

void KeyImpl::OnCancelAnswered(std::uint64_t ticket, bool withdrawn) {
  {
    const std::lock_guard lock(mutex_);
    ++cancels_answered_;
    if (withdrawn) {
      const std::uint64_t before = withdrawn_count_.fetch_add(1, std::memory_order_relaxed);
      withdrawn_[before % kWithdrawnRemembered] = ticket;
      pushed_ticket_ = pushed_ticket_before_;
      job_iteration_after_ = job_iteration_.load(std::memory_order_relaxed);
      done_ticket_.store(ticket, std::memory_order_seq_cst);
      ReportWatched();
    }
  }
  changed_.notify_all();
}

}  // namespace phub::client
