// A key's view of its job. Implemented by JobImpl; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "client/commands.h"
#include "phub/status.h"

namespace phub::client {

// Whether a job has logged these warnings (first_push.h): one line for all of its keys.
struct FirstPushWarnings {
  std::atomic<bool> not_initialized{false};
  std::atomic<bool> learning_rate_zero{false};
};

class KeyOwner {
 public:
  virtual ~KeyOwner() = default;
  virtual const std::string& name() const = 0;  // the job's name
  virtual std::uint32_t rank() const = 0;
  virtual bool applies_iterations() const = 0;  // JobOptions::apply
  virtual Status status() const = 0;            // OK, or the job's verdict
  // The same. If the job is about to get its verdict, waits for it, for a bounded time.
  virtual Status AwaitVerdict() const { return status(); }
  virtual std::string verdict_key() const = 0;  // the key that the verdict names, if it names one
  // True after the engine has stopped: it no longer uses the caller's memory. Only with a verdict.
  virtual bool ended() const = 0;
  // Sends a command to the engine. May wait for the engine's thread: do not hold a lock that it
  // takes.
  virtual void Submit(const Command& command) = 0;
  virtual FirstPushWarnings& first_push_warnings() = 0;
  // Which ranks the key's round waits for, and which ranks wait for each other, as the daemon knows
  // it: "it waits for rank 1". Empty: the daemon did not answer. Takes a call to the daemon.
  virtual std::string ExplainWait(const std::string& key) const = 0;
  // This rank cannot go on: the job ends with this verdict unless it has one.
  virtual void GiveUp(Status verdict) = 0;
};

}  // namespace phub::client
