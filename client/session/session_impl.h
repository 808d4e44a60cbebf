// Behind phub::Session: where the daemon is, and how it is reached. Immutable; any thread. Every
// job that is joined makes channels of its own, which outlive the session if need be.
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
