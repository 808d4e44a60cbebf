// A lane over one TCP socket, with TLS. For TcpTransport it is a TcpConnection like any other; the
// ones without TLS do not notice that there are such.
#pragma once

#include <cstdint>
#include <memory>

#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tls/tls_session.h"

namespace phub::transport {

class TlsConnection final : public TcpConnection {
 public:
  // After the handshake. The session is of that socket.
  TlsConnection(Descriptor socket, std::unique_ptr<TlsSession> session, std::uint8_t version,
                const StreamLimits& limits);

  IoResult Readv(std::span<const iovec> parts) override;
  IoResult Writev(std::span<const iovec> parts) override;
  void Shutdown() override;

 private:
  const std::unique_ptr<TlsSession> session_;
};

}  // namespace phub::transport
