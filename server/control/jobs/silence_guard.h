// Control that was busy itself has not heard its workers.
#pragma once

#include "server/control/state.h"

namespace phub::server {

// Runs heavy work (building a shard) and forgives the workers the silence that it causes.
class SilenceGuard {
 public:
  explicit SilenceGuard(Control::State& state);
  ~SilenceGuard();

 private:
  Control::State& state_;
  const TimeNs begun_at_;
};

}  // namespace phub::server
