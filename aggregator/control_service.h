// The control port: gRPC on a Unix socket that only this process's user and root can open. The
// permissions of the file are the authentication, so there is no key to distribute and no port that
// strangers can reach.
// Threads: gRPC's; they lock `mutex` around the engine, as the thread of the datagrams does.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "aggregator/engine.h"
#include "common/base/clock.h"

namespace phub::aggregator {

class ControlServer {
 public:
  // `engine`, `mutex` and `clock` must outlive the server. `address`: where workers send to, as
  // text.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Create(const std::string& socket_path,
                                                               std::string address, Engine& engine,
                                                               std::mutex& mutex,
                                                               const Clock& clock);
  ~ControlServer();  // ends open calls, and removes the socket
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::aggregator
