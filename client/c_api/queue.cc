// phub_queue_*.
#include <chrono>

#include "client/c_api/objects.h"
#include "client/session/fork.h"

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only
using phub::Status;
using phub::StatusCode;
using phub::client::CompletionQueue;

namespace {

CompletionQueue::Deadline DeadlineAfter(int64_t timeout_ns) {
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds timeout(timeout_ns);
  if (timeout_ns < 0 || timeout > std::chrono::steady_clock::time_point::max() - now)
    return std::nullopt;
  return now + timeout;
}

Status WaitFor(CompletionQueue& queue, int64_t timeout_ns, phub::client::WatchedRounds& one) {
  switch (queue.Wait(DeadlineAfter(timeout_ns), one)) {
    case CompletionQueue::Outcome::kReady: return Status();
    case CompletionQueue::Outcome::kTimedOut:
      return Status(StatusCode::kDeadlineExceeded, "no round of the queue is complete yet");
    case CompletionQueue::Outcome::kClosed: break;
  }
  return Status(StatusCode::kCancelled, "the queue was closed");
}

}  // namespace

phub_result phub_queue_create(phub_queue** queue, phub_error** error) {
  return Run({}, error, [&] {
    if (queue == nullptr) return NullArgument("phub_queue_create", "queue");
    *queue = new phub_queue{std::make_shared<CompletionQueue>()};
    return Status();
  });
}

phub_result phub_queue_add(phub_queue* queue, const phub_handle* handle, uint64_t tag,
                           phub_error** error) {
  return Run(handle, error, [&] {
    if (queue == nullptr) return NullArgument("phub_queue_add", "queue");
    if (handle == nullptr) return NullArgument("phub_queue_add", "handle");
    if (phub::client::InForkedChild()) return phub::client::ForkedStatus();
    phub::client::RoundAccess::Watch(handle->handle, tag, queue->state);
    return Status();
  });
}

phub_result phub_queue_wait(phub_queue* queue, int64_t timeout_ns, uint64_t* tag,
                            phub_result* result, phub_error** error) {
  phub::client::WatchedRounds one;
  const phub_result waited = Run({}, error, [&] {
    if (queue == nullptr) return NullArgument("phub_queue_wait", "queue");
    if (tag == nullptr) return NullArgument("phub_queue_wait", "tag");
    if (result == nullptr) return NullArgument("phub_queue_wait", "result");
    if (phub::client::InForkedChild()) return phub::client::ForkedStatus();
    return WaitFor(*queue->state, timeout_ns, one);
  });
  if (waited != PHUB_OK) return waited;
  const phub::client::WatchedRound& round = one.front();
  *tag = round.tag;
  *result = Run(Place(round.key.get()), error, [&round] {
    return phub::client::WaitForAll(round.earlier.get(), *round.key, round.ticket, std::nullopt);
  });
  return PHUB_OK;
}

void phub_queue_close(phub_queue* queue) {
  if (queue != nullptr && !phub::client::InForkedChild()) queue->state->Close();
}

void phub_queue_free(phub_queue* queue) {
  phub_queue_close(queue);
  // In a forked child, threads that do not exist there may seem to wait.
  phub::client::DeleteInParent()(queue);
}
