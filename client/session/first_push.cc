#include "client/session/first_push.h"

#include "common/base/log.h"

namespace phub::client {

void FirstPush::CheckOnce(const KeyDefinition& definition, KeyOwner& job) {
  if (checked_.exchange(true, std::memory_order_relaxed)) return;
  FirstPushWarnings& warned = job.first_push_warnings();
  if (!has_values_.load(std::memory_order_relaxed) && !warned.not_initialized.exchange(true)) {
    LogWarning(
        "event=key_not_initialized job={} rank={} key=\"{}\" reason=\"the optimizer starts from "
        "zeros, since no rank called Initialize() or Broadcast(); call it on every rank before the "
        "first push. Other keys of the job are not reported\"",
        job.name(), job.rank(), definition.name);
  }
  if (learning_rate_.load(std::memory_order_relaxed) == 0.0 &&
      !warned.learning_rate_zero.exchange(true)) {
    LogWarning(
        "event=learning_rate_zero job={} rank={} key=\"{}\" reason=\"pushes do not change the "
        "parameters until SetHyperParameters() sets a learning rate. Other keys of the job are not "
        "reported\"",
        job.name(), job.rank(), definition.name);
  }
}

}  // namespace phub::client
