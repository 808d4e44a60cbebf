// One lane over one TCP socket. Made by DialTcp or TcpListener on a cold thread; after that it
// belongs to the TcpTransport that adopted it. Destroying it closes the socket; any thread, once
// nobody serves it.
#pragma once

#include <cstdint>

#include "common/base/descriptor.h"
#include "common/transport/stream/stream_transport.h"

namespace phub::transport {

class TcpConnection : public StreamConnection {
 public:
  // Takes a connected socket, and makes it what a lane needs: non-blocking, TCP_NODELAY.
  TcpConnection(Descriptor socket, std::uint8_t version, const StreamLimits& limits);

  IoResult Readv(std::span<const iovec> parts) override;
  IoResult Writev(std::span<const iovec> parts) override;
  void Shutdown() override;

  int socket() const { return socket_.get(); }
  std::uint8_t version() const { return version_; }  // of the lane, as both ends agreed
  // The kernel said that the peer sends no more (or the socket failed): from now on a read that
  // comes back short does not mean that the end was not reached.
  void NoteHangup() { hangup_ = true; }

 protected:
  bool hangup() const { return hangup_; }

 private:
  Descriptor socket_;
  std::uint8_t version_;
  bool hangup_ = false;
};

}  // namespace phub::transport
