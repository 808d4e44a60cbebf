// What a gRPC channel to a daemon connects to. gRPC's own resolver ignores /etc/hosts while no name
// server answers, so names are resolved here, like everywhere in phub (common/net). Any thread;
// blocks as long as the system's resolver does, and for names with several addresses up to
// kChoiceTimeout.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace phub::client {

inline constexpr std::string_view kUnixScheme = "unix:";
inline constexpr DurationNs kChoiceTimeout = 2 * kSecond;

// gRPC's form of "host:port": a list of addresses of one family, first the one that answers first.
// "unix:/path" stays as it is. Errors: those of net::Resolve().
absl::StatusOr<std::string> ResolvedTarget(const std::string& target);

}  // namespace phub::client
