// What a key asks of its job. Implemented by the job's state; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "client/commands.h"
#include "phub/status.h"

namespace phub::client {

class KeyOwner {
 public:
  virtual ~KeyOwner() = default;
  virtual const std::string& name() const = 0;  // of the job
  virtual std::uint32_t rank() const = 0;
  virtual bool applies_iterations() const = 0;  // JobOptions::apply
  virtual Status status() const = 0;            // OK, or the job's verdict
  virtual std::string verdict_key() const = 0;  // the key that the verdict names, if it names one
  // The engine has stopped: no memory of the caller is touched any more. Only with a verdict.
  virtual bool ended() const = 0;
  // To the engine. May wait for its thread, so not with a lock that this thread takes.
  virtual void Submit(const Command& command) = 0;
};

}  // namespace phub::client
