// A lane over one TCP socket, with TLS. TcpTransport serves it like any other TcpConnection.
#pragma once

#include <cstdint>
#include <memory>

#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tls/tls_session.h"

namespace phub::transport {

class TlsConnection final : public TcpConnection {
 public:
  // `session` is the socket's session, after the handshake.
  TlsConnection(Descriptor socket, std::unique_ptr<TlsSession> session, std::uint8_t version,
                const StreamLimits& limits);

  IoResult Readv(std::span<const iovec> parts) override;
  IoResult Writev(std::span<const iovec> parts) override;
  void Shutdown() override;

 private:
  const std::unique_ptr<TlsSession> session_;
};

}  // namespace phub::transport
