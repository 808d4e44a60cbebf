// One lane over one TCP socket. DialTcp or TcpListener creates it; then it belongs to the
// TcpTransport that adopted it. The destructor closes the socket; any thread may call it when no
// transport serves the connection any more.
#pragma once

#include <cstdint>

#include "common/base/descriptor.h"
#include "common/transport/stream/stream_transport.h"

namespace phub::transport {

class TcpConnection : public StreamConnection {
 public:
  // Takes a connected socket; sets it to non-blocking and TCP_NODELAY.
  TcpConnection(Descriptor socket, std::uint8_t version, const StreamLimits& limits);

  IoResult Readv(std::span<const iovec> parts) override;
  IoResult Writev(std::span<const iovec> parts) override;
  void Shutdown() override;
  void LimitUnsent(std::uint32_t bytes) override;

  int socket() const { return socket_.get(); }
  // The kernel has reported that the peer sends no more, or that the socket failed. From now on, a
  // short read may have reached the end of the stream, so reading must continue.
  void NoteHangup() { hangup_ = true; }

 protected:
  bool hangup() const { return hangup_; }

 private:
  Descriptor socket_;
  bool hangup_ = false;
};

}  // namespace phub::transport
