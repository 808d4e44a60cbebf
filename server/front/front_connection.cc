#include "server/front/front_connection.h"

#include <utility>

namespace phub::server {
namespace {

constexpr std::size_t kReadBytes = 16 * 1024;
// A connection that has more to do continues after the others.
constexpr int kReadsPerTurn = 4;
constexpr int kWritesPerTurn = 16;
constexpr std::size_t kOutletBytes = 16 * 1024;
constexpr std::size_t kDiscardedBytesMax = 2 << 20;

}  // namespace

FrontConnection::~FrontConnection() { Close(end_); }

void FrontConnection::Start(const TlsContext& context, TimeNs now) {
  since_ = now;
  client_readable_ = true;
  if (context == nullptr) return Serve(now);
  state_ = State::kHandshake;
  if (!client_.StartTls(context)) Close(End::kMemory);
}

void FrontConnection::Serve(TimeNs now) {
  state_ = State::kServing;
  relay_ = std::make_unique<StreamRelay>(*this, owner_.serving(), now);
}

void FrontConnection::Judge(const HeaderList& headers) {
  FrontCall call;
  call.connection = id_;
  call.peer = peer_;
  call.path = FindHeader(headers, ":path");
  for (const auto& [name, value] : headers) {
    if (name == "authorization") call.authorization.push_back(value);
  }
  if (auto certificate = client_.PeerCertificate(); certificate.has_value()) {
    call.certificate = true;
    call.certificate_end = certificate->end;
    call.uris = std::move(certificate->uris);
  }
  owner_.Judge(call);
}

void FrontConnection::Open(Descriptor upstream) {
  upstream_ = WireSocket(std::move(upstream));
  upstream_readable_ = true;
  relay_->Open();
}

void FrontConnection::Refuse(std::uint32_t code, std::string_view message) {
  relay_->Refuse(code, message);
}

void FrontConnection::SetServing(bool serving) {
  if (relay_ != nullptr) relay_->SetServing(serving);
}

void FrontConnection::NoteClient(bool readable, bool writable) {
  client_readable_ |= readable;
  to_client_.writable |= writable;
}

void FrontConnection::NoteUpstream(bool readable, bool writable) {
  upstream_readable_ |= readable;
  to_upstream_.writable |= writable;
}

bool FrontConnection::ReadClient(TimeNs now) {
  char bytes[kReadBytes];
  // Frames of a client that does not read its answers wait in its own socket.
  if (!client_readable_ || (!to_client_.empty() && !to_client_.writable)) return false;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    std::size_t size = 0;
    switch (client_.Read(bytes, sizeof bytes, size)) {
      case WireSocket::State::kDone: relay_->ReceiveFromClient({bytes, size}, now); break;
      case WireSocket::State::kBlocked: client_readable_ = false; return false;
      case WireSocket::State::kEnded: Close(End::kNormal); return false;
    }
    if (relay_->Ended()) return false;
  }
  return true;
}

bool FrontConnection::ReadUpstream() {
  char bytes[kReadBytes];
  if (!upstream_readable_ || !upstream_) return false;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    std::size_t size = 0;
    switch (upstream_.Read(bytes, sizeof bytes, size)) {
      case WireSocket::State::kDone: relay_->ReceiveFromUpstream({bytes, size}); break;
      case WireSocket::State::kBlocked: upstream_readable_ = false; return false;
      case WireSocket::State::kEnded:
        upstream_readable_ = false;
        upstream_ended_ = true;
        relay_->UpstreamEnded();
        return false;
    }
  }
  return true;
}

// What a client sends after the end is dropped: if it stayed in the socket, the kernel would reset
// the connection and the client might not see why it ended. True: the client has ended, too.
bool FrontConnection::Discard() {
  char bytes[kReadBytes];
  while (discarded_ < kDiscardedBytesMax) {
    std::size_t size = 0;
    const WireSocket::State state = client_.Read(bytes, sizeof bytes, size);
    if (state == WireSocket::State::kBlocked) return false;
    if (state == WireSocket::State::kEnded) return true;
    discarded_ += size;
  }
  return true;
}

// True: stopped by the limit of one turn.
template <typename Next>
bool FrontConnection::Flush(WireSocket& socket, Outlet& outlet, Next next) {
  for (int i = 0; i < kWritesPerTurn; ++i) {
    while (outlet.bytes.size() - outlet.head < kOutletBytes) {
      const std::string_view bytes = next();
      if (bytes.empty()) break;
      outlet.bytes.append(bytes);
    }
    if (outlet.empty()) {
      std::string().swap(outlet.bytes);
      outlet.head = 0;
      return false;
    }
    if (!outlet.writable) return false;
    std::size_t done = 0;
    const auto result =
        socket.Write(outlet.bytes.data() + outlet.head, outlet.bytes.size() - outlet.head, done);
    outlet.head += done;
    if (outlet.head >= kOutletBytes) {
      outlet.bytes.erase(0, outlet.head);
      outlet.head = 0;
    }
    if (result == WireSocket::State::kBlocked) outlet.writable = false;
    if (result == WireSocket::State::kEnded) {
      if (&socket == &client_) {
        Close(End::kNormal);
      } else {
        upstream_ended_ = true;
        relay_->UpstreamEnded();
        std::string().swap(outlet.bytes);
        outlet.head = 0;
      }
      return false;
    }
  }
  return true;
}

bool FrontConnection::FlushUpstream() {
  if (state_ != State::kServing || !upstream_ || upstream_ended_) return false;
  return Flush(upstream_, to_upstream_, [this] { return relay_->NextForUpstream(); });
}

bool FrontConnection::Turn(TimeNs now) {
  if (state_ == State::kHandshake) {
    switch (client_.Handshake()) {
      case WireSocket::State::kDone: Serve(now); break;
      case WireSocket::State::kBlocked: return false;
      case WireSocket::State::kEnded: Close(End::kNormal); return false;
    }
  }
  if (state_ != State::kServing) return false;
  bool more = false;
  if (!relay_->Ended()) more |= ReadClient(now);
  if (state_ == State::kServing) more |= ReadUpstream();
  more |= FlushUpstream();
  if (state_ == State::kServing) {
    more |= Flush(client_, to_client_, [this] { return relay_->NextForClient(); });
  }
  more |= FlushUpstream();  // windows that opened because the client's socket has taken data
  CheckEnd(now);
  return more && state_ == State::kServing;
}

void FrontConnection::CheckEnd(TimeNs now) {
  if (state_ != State::kServing) return;
  if (relay_->out_of_memory()) return Close(End::kMemory);
  if (relay_->upstream_failed()) return Close(End::kNormal);
  if (!relay_->Ended() && !upstream_ended_) return;
  if (ending_since_ == 0) ending_since_ = now;
  const bool flushed = to_client_.empty() && relay_->Ended();
  if (flushed && !std::exchange(shut_, true)) client_.ShutDownWriting();
  const bool client_ended = relay_->Ended() && Discard();
  if (!(flushed && client_ended) && now - ending_since_ < kFlushTimeout) return;
  // A client whose bytes were never HTTP/2 has had no call.
  Close(relay_->flooded() ? End::kFlood : relay_->opened() ? End::kNormal : End::kForm);
}

bool FrontConnection::Sweep(TimeNs now) {
  if (state_ == State::kServing && ending_since_ != 0) {
    CheckEnd(now);
    return false;
  }
  if (state_ == State::kServing) relay_->EndUnfinished(now);
  if (state_ == State::kClosed || opened()) return false;
  const DurationNs limit = state_ == State::kSilent ? kFirstMessageTimeout : kStrangerTimeout;
  if (now - since_ < limit) return false;
  Close(End::kNormal);
  return true;
}

void FrontConnection::Close(End end) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  end_ = end;
  client_.Close();
  upstream_.Close();
}

std::size_t FrontConnection::excess_bytes() const {
  if (relay_ == nullptr || state_ == State::kClosed) return 0;
  const std::size_t all =
      relay_->bytes() + to_client_.bytes.capacity() + to_upstream_.bytes.capacity();
  return all > kShareBytes ? all - kShareBytes : 0;
}

}  // namespace phub::server
