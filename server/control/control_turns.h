// Control's turns. A turn begins when a thread takes control's lock and ends when it releases it.
// Counts the work of the present turn, moves work that exceeds the budget to other threads or later
// turns, and knows which peer the turn serves.
//
// Owned by Context; under control's lock.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "server/control/background.h"
#include "server/control/turn_budget.h"
#include "server/metrics/turn_times.h"

namespace phub::server {

class ControlTurns {
 public:
  explicit ControlTurns(const TurnBudget& budget) : at_once_(budget.at_once) {}

  // --- The owner of the lock.
  // Call it before the first Join. Without it, all work is done at once.
  void SetBackground(Background& background) { background_ = &background; }
  // Call it whenever the lock was taken. Control::Poll calls it, too.
  void Begin();
  // The turn serves a call of this peer (a tenant or an address). Its share of log lines pays for
  // refusals in this turn.
  void SetPeer(std::string peer) { peer_ = std::move(peer); }
  // The lock was held for this long (phub_control_lock_seconds).
  void NoteHeld(TurnKind kind, DurationNs held);

  // --- Parts of control.
  // Counts work of the present turn.
  void Add(std::size_t units) { units_ += units; }
  std::size_t units() const { return units_; }
  // Runs `work`, then `then`: at once while the turn's budget lasts (TurnBudget::at_once),
  // otherwise on another thread and without the lock, see Background. `work` must not use what the
  // lock protects.
  void RunLong(std::size_t units, const std::string& tenant, std::function<void()> work,
               std::function<void()> then);
  // Runs `then` in a later turn; at once without has_later().
  void RunLater(const std::string& tenant, std::function<void()> then);
  // Whether work can go on in a later turn. If not, it must be finished in this one.
  bool has_later() const { return background_ != nullptr; }
  const std::string& peer() const { return peer_; }  // empty: not known
  const AllTurnTimes& times() const { return times_; }

 private:
  const std::size_t at_once_;
  Background* background_ = nullptr;  // null: everything runs at once
  std::size_t units_ = 0;
  std::string peer_;
  AllTurnTimes times_{};
};

}  // namespace phub::server
