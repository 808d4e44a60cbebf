// Why a control connection cannot be made. gRPC reports that it failed, but not why, so the
// connection is tried once more, step by step: the name, the addresses, TLS, HTTP/2. Any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "client/session/channel.h"
#include "common/net/dial.h"

namespace phub::client {

struct Diagnosis {
  absl::Status status;     // kUnavailable: says what is wrong and what to do. OK: nothing was found
  bool permanent = false;  // without a change of settings, files or clocks it will not work
};

// `target`: "host:port" or "unix:/path". Returns by the deadline, except that the system's resolver
// may block longer.
Diagnosis DiagnoseControlPort(const std::string& target, const Credentials& credentials,
                              const net::Deadline& deadline);

}  // namespace phub::client
