#include "client/session/job_barriers.h"

#include <fmt/core.h>

#include <utility>

namespace phub::client {

Status JobBarriers::Wait() {
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  DaemonLink* const anchor = calls_.links().front().get();
  v1::BarrierRequest request;
  request.set_session_id(anchor->joined.session_id());
  {
    const std::lock_guard lock(mutex_);
    request.set_sequence(next_++);
  }
  const auto answers = calls_.Each<v1::BarrierResponse>(
      "Barrier", {&anchor, 1},
      [&](DaemonLink& link, auto done) {
        link.channel->Call<rpc::Barrier>(request, /*timeout=*/0, std::move(done));
      },
      /*patient=*/nullptr, /*waits_for_ranks=*/true);
  if (answers.front().ok()) return Status();
  if (calls_.waiter().leaves() && job_.status().ok())
    return Status(StatusCode::kCancelled,
                  fmt::format("rank {} leaves job {} while it waits for other ranks in a barrier",
                              job_.rank(), job_.name()));
  return calls_.StatusOf(job_, "Barrier", *anchor, answers.front().status());
}

Status JobBarriers::Explain() const {
  if (Status verdict = job_.status(); !verdict.ok()) return verdict;
  const std::string why = calls_.ExplainBarrier(tenant_);
  if (why.empty()) return Status();
  return Status(
      StatusCode::kDeadlineExceeded,
      fmt::format("rank {} of job {} waits in a barrier; {}", job_.rank(), job_.name(), why));
}

}  // namespace phub::client
