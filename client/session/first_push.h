// Checks a key when its first gradients are pushed, for two mistakes that would train silently to
// nothing: no Initialize() on any rank, so the parameters are zeros, and a learning rate of 0. Each
// is a warning, since both can be meant, and is logged for one key of a job: a job may have tens of
// thousands. Any thread.
#pragma once

#include <atomic>

#include "client/session/key_definition.h"
#include "client/session/key_owner.h"

namespace phub::client {

class FirstPush {
 public:
  explicit FirstPush(const KeyDefinition& definition)
      : trains_(definition.optimizer.index() != 0),
        learning_rate_(definition.hyper_parameters.learning_rate) {}

  // The key has values: from Initialize(), Broadcast(), a checkpoint or a process before this one.
  void NoteValues() { has_values_.store(true, std::memory_order_relaxed); }
  void NoteLearningRate(double value) { learning_rate_.store(value, std::memory_order_relaxed); }
  // Called before every push of gradients; checks at the first one.
  void Check(const KeyDefinition& definition, KeyOwner& job) {
    if (trains_ && !checked_.load(std::memory_order_relaxed)) CheckOnce(definition, job);
  }

 private:
  void CheckOnce(const KeyDefinition& definition, KeyOwner& job);

  const bool trains_;  // the key has an optimizer
  std::atomic<double> learning_rate_;
  std::atomic<bool> has_values_{false};
  std::atomic<bool> checked_{false};
};

}  // namespace phub::client
