// The control port: gRPC on a Unix socket that only this process's user and root can open, and for
// daemons of other hosts on a TCP port with TLS, if one is given. The permissions of the file are
// the authentication of the socket; on the TCP port it is a certificate of the role `server`.
// Threads: gRPC's; they lock `mutex` around the engine, as the thread of the datagrams does.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "aggregator/engine.h"
#include "common/base/clock.h"
#include "common/net/host_port.h"
#include "common/tls/certificate.h"

namespace phub::aggregator {

struct ControlOptions {
  std::string socket_path;
  // For daemons of other hosts; an empty host: none. REQUIRES: CheckTlsFiles() has accepted the
  // files, and they have a client_ca.
  net::HostAndPort listen;
  TlsFiles tls;
  std::string trust_domain;
};

class ControlServer {
 public:
  // `engine`, `mutex` and `clock` must outlive the server. `address`: where workers send to, as
  // text.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Create(const ControlOptions& options,
                                                               std::string address, Engine& engine,
                                                               std::mutex& mutex,
                                                               const Clock& clock);
  ~ControlServer();  // ends open calls, and removes the socket
  // The TCP port's number; 0 without one.
  std::uint16_t port() const;
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::aggregator
