// The daemon's Unix socket for the administrator of its own host. Root and the daemon's own user
// may do everything there without a token; the kernel identifies them (SO_PEERCRED). The first
// token is created this way. Connections of other users are closed at once, and the socket's mode
// 0600 already keeps such users from connecting.
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
  // Creates the socket, and its folder if necessary. Replaces a socket that no process serves any
  // more. `server` must outlive it.
  static absl::StatusOr<std::unique_ptr<ControlSocket>> Create(const std::string& path,
                                                               GrpcServer& server);
  ~ControlSocket();  // stops accepting; removes the socket
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
