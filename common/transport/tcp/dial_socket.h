// Helpers for dialling a daemon's data port: connect, send and receive before a deadline. Shared by
// all kinds of lanes. Off the data path: blocks, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/net/dial.h"

namespace phub::transport {

using DialDeadline = net::Deadline;

// The error for a peer that did not do `what` in time.
absl::Status TimedOut(const std::string& peer, const char* what, const DialDeadline& deadline);
// Returns a connected, non-blocking socket. Errors: see DialTcp.
absl::StatusOr<Descriptor> DialSocket(const std::string& host, std::uint16_t port,
                                      const DialDeadline& deadline);
// False if not all bytes could be sent. A hello fits into any socket buffer, so this does not wait
// in practice.
bool SendAll(int socket, std::span<const std::byte> bytes, const DialDeadline& deadline);
// Fills `bytes` completely. `peer` is for the error.
absl::Status ReadAll(int socket, std::span<std::byte> bytes, const std::string& peer,
                     const DialDeadline& deadline);

}  // namespace phub::transport
