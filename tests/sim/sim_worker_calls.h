// Calls of a simulated worker to every daemon of its rack at once.
#pragma once

#include <memory>

#include "tests/sim/sim_worker.h"

namespace phub::sim {

template <typename Response>
void SimWorker::CallAll(
    const char* what,
    const std::function<void(Link&, client::ControlChannel::Done<Response>)>& call,
    const std::function<void(Link&, const Response&)>& take, const std::function<void()>& done) {
  auto left = std::make_shared<std::size_t>(links_.size());
  for (const auto& each : links_) {
    Link* const link = each.get();
    call(*link, [this, what, link, left, take, done](absl::StatusOr<Response> answer) {
      if (this->done() || state_ == State::kStopping) return;
      if (!answer.ok()) return Refused(what, *link, answer.status());
      take(*link, *answer);
      if (--*left == 0) done();
    });
  }
}

}  // namespace phub::sim
