#include "server/control/control_turns.h"

namespace phub::server {

void ControlTurns::Begin() {
  units_ = 0;
  peer_.clear();
}

void ControlTurns::NoteHeld(TurnKind kind, DurationNs held) {
  times_[static_cast<std::size_t>(kind)].Add(held);
}

void ControlTurns::RunLong(std::size_t units, const std::string& tenant, std::function<void()> work,
                           std::function<void()> then) {
  if (has_later() && units_ + units > at_once_) {
    return background_->Run(tenant, std::move(work), std::move(then));
  }
  Add(units);
  work();
  then();
}

void ControlTurns::RunLater(const std::string& tenant, std::function<void()> then) {
  if (!has_later()) return then();
  background_->Run(
      tenant, [] {}, std::move(then));
}

}  // namespace phub::server
