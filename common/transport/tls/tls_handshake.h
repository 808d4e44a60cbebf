// The daemon's side of a new TLS lane: the handshake, then the lane's hello. The listener's thread.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "common/transport/pending_lanes.h"
#include "common/transport/tls/tls_session.h"

namespace phub::transport {

class TlsHandshake final : public PendingLanes::Handshake {
 public:
  // The total length of the record that starts with these bytes, if it may be a ClientHello;
  // otherwise 0.
  static std::size_t RecordBytes(std::span<const std::byte> first);

  // `first` must stay valid until the first call of Advance returns.
  TlsHandshake(int socket, std::span<const std::byte> first, LaneKeyFinder finder);

  Step Advance() override;
  // After kDone.
  std::span<const std::byte> request() const { return hello_; }
  // Whether the handshake used the key of the lane that this hello asks for.
  bool IsFor(const wire::LaneHello& hello) const { return NameOfLane(hello) == name_; }
  void Answer(const wire::LaneWelcome& welcome);
  std::unique_ptr<TlsSession> TakeSession();

 private:
  LaneKeyName name_{};  // sent by the peer
  std::unique_ptr<TlsSession> session_;
  bool secured_ = false;
  std::array<std::byte, wire::kLaneHelloBytes> hello_;
  std::size_t have_ = 0;
};

}  // namespace phub::transport
