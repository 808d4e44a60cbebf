// What dialling a daemon's data port takes, whatever the lane: a connected socket, and bytes to and
// fro before a deadline. Cold: blocks, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::transport {

struct DialDeadline {
  const Clock& clock;
  TimeNs at;
  DurationNs timeout;  // that it was made with, for the error
};

// What is said of a peer that did not do `what` in time.
absl::Status TimedOut(const std::string& peer, const char* what, const DialDeadline& deadline);
// Connected and non-blocking. Errors as DialTcp says.
absl::StatusOr<Descriptor> DialSocket(const std::string& host, std::uint16_t port,
                                      const DialDeadline& deadline);
// Whole or not at all; a hello fits any socket buffer, so this waits in theory only.
bool SendAll(int socket, std::span<const std::byte> bytes, const DialDeadline& deadline);
// All of it; `peer` is for the error.
absl::Status ReadAll(int socket, std::span<std::byte> bytes, const std::string& peer,
                     const DialDeadline& deadline);

}  // namespace phub::transport
