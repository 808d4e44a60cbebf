// Implements phub::Session: the daemon's endpoint and the connection options. Immutable; any
// thread. Every joined job opens its own channels, which may outlive the session.
#pragma once

#include <memory>
#include <utility>

#include "client/session/connector.h"
#include "client/session/endpoint.h"
#include "phub/client.h"

namespace phub::client {

class SessionImpl {
 public:
  SessionImpl(Endpoint daemon, ConnectOptions options, std::shared_ptr<Connector> connector)
      : daemon_(std::move(daemon)),
        options_(std::move(options)),
        connector_(std::move(connector)) {}

  const Endpoint& daemon() const { return daemon_; }
  const ConnectOptions& options() const { return options_; }
  const std::shared_ptr<Connector>& connector() const { return connector_; }

 private:
  const Endpoint daemon_;
  const ConnectOptions options_;
  const std::shared_ptr<Connector> connector_;
};

}  // namespace phub::client
