#include "common/transport/tls/tls_connection.h"

#include <utility>

#include "common/base/check.h"

namespace phub::transport {

TlsConnection::TlsConnection(Descriptor socket, std::unique_ptr<TlsSession> session,
                             std::uint8_t version, const StreamLimits& limits)
    : TcpConnection(std::move(socket), version, limits), session_(std::move(session)) {
  PHUB_CHECK(session_ != nullptr && session_->is_lane(), "the handshake is not over");
}

IoResult TlsConnection::Readv(std::span<const iovec> parts) {
  return session_->Readv(parts, hangup());
}

IoResult TlsConnection::Writev(std::span<const iovec> parts) { return session_->Writev(parts); }

void TlsConnection::Shutdown() {
  session_->Close();
  TcpConnection::Shutdown();
}

}  // namespace phub::transport
