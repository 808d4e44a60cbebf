#include "client/session/first_verdict.h"

#include <algorithm>

#include "client/session/rack_join.h"

namespace phub::client {
namespace {

// A daemon's fault names its subject; what this rank has found out itself does not.
bool IsFault(const Status& verdict) { return verdict.subject() != nullptr; }

}  // namespace

void FirstVerdict::Await() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !asking_; });
}

void FirstVerdict::Offer(Verdict verdict) {
  const DaemonLink& anchor = *links_.front();
  const bool is_first = verdict.from == &anchor && IsFault(verdict.status);
  if (links_.size() < 2 || is_first) return settle_(std::move(verdict), nullptr);
  const std::string text(verdict.status.message());
  {
    const std::lock_guard lock(mutex_);
    if (offered_) {
      const bool says_more = IsFault(verdict.status) && !IsFault(offered_->status);
      if (says_more && !fallback_) fallback_ = std::move(verdict);
      return;
    }
    offered_ = std::move(verdict);
    asking_ = true;
  }
  const DurationNs timeout =
      std::min<DurationNs>(kOfferTimeoutMax, anchor.joined.liveness_timeout_ns() / 2);
  anchor.channel->Call<rpc::Leave>(LeaveRequestOf(anchor, text), timeout,
                                   [this](const auto& answer) { EndOffer(answer.status()); });
}

void FirstVerdict::EndOffer(const absl::Status& answer) {
  // ABORTED: the job had ended there already, with this verdict.
  const bool is_known = answer.ok() || absl::IsAborted(answer);
  Verdict verdict;
  {
    const std::lock_guard lock(mutex_);
    verdict = !is_known && fallback_ ? *fallback_ : *offered_;
  }
  if (absl::IsAborted(answer) && answer.message() != verdict.status.message()) {
    verdict.status = Status(StatusCode::kAborted, std::string(answer.message()));
    verdict.key.clear();
  }
  settle_(std::move(verdict), is_known ? links_.front().get() : nullptr);
  const std::lock_guard lock(mutex_);
  asking_ = false;
  changed_.notify_all();
}

}  // namespace phub::client
