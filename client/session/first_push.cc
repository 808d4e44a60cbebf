#include "client/session/first_push.h"

#include "common/base/log.h"

namespace phub::client {

void FirstPush::CheckOnce(const KeyDefinition& definition, const KeyOwner& job) {
  if (checked_.exchange(true, std::memory_order_relaxed)) return;
  if (!has_values_.load(std::memory_order_relaxed)) {
    LogWarning(
        "event=key_not_initialized job={} rank={} key=\"{}\" reason=\"the optimizer starts from "
        "zeros, since no rank called Initialize() or Broadcast(); call it on every rank before the "
        "first push\"",
        job.name(), job.rank(), definition.name);
  }
  if (learning_rate_.load(std::memory_order_relaxed) == 0.0) {
    LogWarning(
        "event=learning_rate_zero job={} rank={} key=\"{}\" reason=\"pushes do not change the "
        "parameters until SetHyperParameters() sets a learning rate\"",
        job.name(), job.rank(), definition.name);
  }
}

}  // namespace phub::client
