// The daemon's Unix socket for its own host's administrator: root and the daemon's own user, as the
// kernel names them (SO_PEERCRED), may do everything there, without a token. That is how the first
// token is made. Everybody else is closed on at once, and could not open it anyway: mode 0600.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "server/control/rpc/grpc_server.h"

namespace phub::server {

class ControlSocket {
 public:
  // Makes the socket, and its folder if that is not there; takes the place of one that nobody
  // serves any more. `server` outlives it.
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Create(const std::string& path,
                                                               GrpcServer& server);
  ~ControlSocket();  // takes no more connections; removes the socket
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  ControlSocket(std::string path, Descriptor listening, GrpcServer& server);
  void Loop();
  void Take(Descriptor connection);

  const std::string path_;
  const Descriptor listening_;
  GrpcServer& server_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace phub::server
