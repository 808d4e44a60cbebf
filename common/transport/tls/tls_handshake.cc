#include "common/transport/tls/tls_handshake.h"

#include <utility>

#include "common/base/log.h"

namespace phub::transport {
namespace {

// The header of a TLS record: type u8, version u16, length u16.
constexpr std::size_t kRecordHeaderBytes = 5;
constexpr std::byte kHandshakeRecord{22};
constexpr std::byte kMajorVersion{3};

}  // namespace

std::size_t TlsHandshake::RecordBytes(std::span<const std::byte> first) {
  if (first.size() < kRecordHeaderBytes || first[0] != kHandshakeRecord ||
      first[1] != kMajorVersion) {
    return 0;
  }
  return kRecordHeaderBytes + (std::to_integer<std::size_t>(first[3]) << 8) +
         std::to_integer<std::size_t>(first[4]);
}

TlsHandshake::TlsHandshake(int socket, std::span<const std::byte> first, LaneKeyFinder finder)
    : session_(TlsSession::MakeDaemon(
          socket, first, [this, finder = std::move(finder)](const LaneKeyName& name, LaneKey& key) {
            if (!finder(name, key)) return false;
            name_ = name;
            return true;
          })) {}

TlsHandshake::Step TlsHandshake::Advance() {
  if (!secured_) {
    switch (session_->Handshake()) {
      case TlsSession::Step::kWaitsToRead: return Step::kWaits;
      case TlsSession::Step::kFailed:
        LogDebug("event=handshake_failed reason=\"{}\"", session_->failure());
        return Step::kFailed;
      case TlsSession::Step::kDone: secured_ = true;
    }
  }
  const iovec part{hello_.data() + have_, hello_.size() - have_};
  const IoResult io = session_->Readv({&part, 1}, /*hangup=*/false);
  have_ += io.bytes;
  if (have_ == hello_.size()) return Step::kDone;
  return io.status == IoStatus::kDrained ? Step::kWaits : Step::kFailed;
}

void TlsHandshake::Answer(const wire::LaneWelcome& given) {
  wire::LaneWelcome welcome = given;
  if (welcome.refusal != wire::LaneRefusal::kNone) welcome.version = 0;
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  wire::EncodeLaneWelcome(welcome, bytes);
  const iovec part{bytes.data(), bytes.size()};
  // Fits into the empty buffer of a new socket. It does not matter if the peer has closed it.
  [[maybe_unused]] const IoResult io = session_->Writev({&part, 1});
  if (welcome.refusal != wire::LaneRefusal::kNone) session_->Close();
}

std::unique_ptr<TlsSession> TlsHandshake::TakeSession() {
  session_->BecomeLane();
  return std::move(session_);
}

}  // namespace phub::transport
