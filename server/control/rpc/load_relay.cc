#include "server/control/rpc/load_relay.h"

#include <utility>

#include "common/base/check.h"

namespace phub::server {

void LoadRelay::Start(std::function<void()> call) {
  calls_.Start([self = shared_from_this(), call = std::move(call)] { call(); });
}

void LoadRelay::Begin() {
  self_ = shared_from_this();
  held_ = true;
  Start([this] {
    relay_.session(to_)->async()->LoadState(&context_, &response_, this);
    AddHold();
    StartCall();
  });
}

void LoadRelay::Write(v1::LoadStateRequest part) {
  PHUB_CHECK(held_ && !busy() && !over_);
  part_ = std::move(part);
  writing_ = true;
  Start([this] { StartWrite(&part_); });
}

void LoadRelay::Close() {
  closing_ = true;
  Advance();
}

void LoadRelay::Cancel() {
  if (over_) return;
  broken_ = true;
  Start([this] { context_.TryCancel(); });
}

void LoadRelay::OnWriteDone(bool ok) {
  const auto self = shared_from_this();
  thread_.Run({TurnKind::kStream, "load_relay"}, [&](Control& control) {
    writing_ = false;
    broken_ = broken_ || !ok;
    Advance();
    on_change_(control);
  });
}

void LoadRelay::Advance() {
  if (calls_.pending() || writing_ || !held_ || !(closing_ || broken_)) return;
  held_ = false;
  Start([this, all = !broken_] {
    if (all) StartWritesDone();
    RemoveHold();
  });
}

void LoadRelay::OnDone(const grpc::Status& status) {
  const std::shared_ptr<LoadRelay> self = std::move(self_);
  thread_.Run({TurnKind::kStream, "load_relay"}, [&](Control& control) {
    over_ = true;
    status_ = relay_.SaidBy(to_, status);
    on_change_(control);
  });
}

}  // namespace phub::server
