#include "common/transport/tcp/tcp_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/net/listen.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_socket.h"
#include "common/transport/tls/tls_connection.h"
#include "common/transport/tls/tls_handshake.h"

namespace phub::transport {
namespace {

// The address block as an origin's key: the /64 of an IPv6 address, or an IPv4 address mapped to
// IPv6. A host can use all addresses of its /64.
std::array<std::byte, 16> KeyOf(const net::SocketAddress& address) {
  std::array<std::byte, 16> key{};
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    const std::size_t bytes = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) ? key.size() : 8;
    std::memcpy(key.data(), &v6->sin6_addr, bytes);
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    key[10] = key[11] = std::byte{0xFF};
    std::memcpy(key.data() + 12, &v4->sin_addr, 4);
  }
  return key;
}

}  // namespace

struct TcpListener::Impl final : PendingLanes {
  Impl(const TcpListenerOptions& options, LaneGate& gate_in, const Clock& clock,
       std::vector<LaneKind*> others_in)
      : PendingLanes({.request_timeout = options.hello_timeout,
                      .places_max = options.pending_max,
                      .places_per_origin_max = options.pending_per_address_max,
                      .packets = false,
                      .transport_name = "tcp"},
                     clock),
        tls(options.tls),
        limits(options.limits),
        gate(gate_in),
        others(std::move(others_in)) {}

  Descriptor Accept(const Descriptor& listening, Origin& origin) override;
  std::size_t RequestBytes(std::span<const std::byte> first) const override;
  void Decide(Descriptor socket, std::span<const std::byte> request, const Origin& origin) override;
  std::unique_ptr<Handshake> BeginHandshake(int socket, std::span<const std::byte> first) override;
  void DecideAfter(std::unique_ptr<Handshake> handshake, Descriptor socket,
                   const Origin& origin) override;
  // Chooses the version and asks the gate; kNone admits the lane.
  wire::LaneRefusal Judge(const wire::LaneHello& hello, const Origin& origin,
                          std::uint8_t& version);
  // The kind of lane that a request asks for; null: a lane over tcp.
  LaneKind* FindOther(std::span<const std::byte> request) const;
  void DecideOther(LaneKind& other, Descriptor socket, std::span<const std::byte> request,
                   const Origin& origin);

  const bool tls;
  const StreamLimits limits;
  LaneGate& gate;
  const std::vector<LaneKind*> others;
  std::vector<net::SocketAddress> bound;
};

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Create(const TcpListenerOptions& options,
                                                                 LaneGate& gate, const Clock& clock,
                                                                 std::vector<LaneKind*> others) {
  for (const LaneKind* other : others) PHUB_CHECK(other->request_bytes() > wire::kLaneHelloBytes);
  absl::StatusOr<net::Listening> listening =
      net::Listen(options.host, options.port, {.make = LaneSocket});
  if (!listening.ok()) return listening.status();
  auto impl = std::make_unique<Impl>(options, gate, clock, std::move(others));
  impl->bound = std::move(listening->addresses);
  const absl::Status watched = impl->Listen(std::move(listening->sockets), "the listening sockets");
  if (!watched.ok()) return watched;
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(impl)));
}

TcpListener::TcpListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TcpListener::~TcpListener() = default;

std::uint16_t TcpListener::port() const { return net::PortOf(impl_->bound.front()); }
const std::vector<net::SocketAddress>& TcpListener::addresses() const { return impl_->bound; }
const LaneListenerCounters& TcpListener::counters() const { return impl_->counters(); }
std::uint32_t TcpListener::pending_count() const { return impl_->count(); }
bool TcpListener::PollOnce(DurationNs timeout) { return impl_->PollOnce(timeout); }

Descriptor TcpListener::Impl::Accept(const Descriptor& listening, Origin& origin) {
  net::SocketAddress address;
  address.bytes = sizeof address.storage;
  Descriptor socket(
      accept4(listening.get(), address.get(), &address.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (socket) origin = {.key = KeyOf(address), .text = net::AddressText(address)};
  return socket;
}

std::size_t TcpListener::Impl::RequestBytes(std::span<const std::byte> first) const {
  if (const LaneKind* other = FindOther(first)) return other->request_bytes();
  const std::size_t record_bytes = tls ? TlsHandshake::RecordBytes(first) : 0;
  return record_bytes > first.size() && record_bytes <= kRequestBytesMax ? record_bytes
                                                                         : first.size();
}

std::unique_ptr<PendingLanes::Handshake> TcpListener::Impl::BeginHandshake(
    int socket, std::span<const std::byte> first) {
  if (!tls || TlsHandshake::RecordBytes(first) != first.size()) return nullptr;
  return std::make_unique<TlsHandshake>(
      socket, first, [this](const LaneKeyName& name, LaneKey& key) {
        wire::LaneHello hello;
        wire::Nonce nonce;
        if (!wire::DecodeLaneHello(name, hello) || hello.nonce != wire::Nonce{} ||
            !gate.FindNonce(hello, nonce)) {
          return false;
        }
        key = KeyOfLane(name, nonce);
        return true;
      });
}

LaneKind* TcpListener::Impl::FindOther(std::span<const std::byte> request) const {
  const auto found = std::ranges::find_if(others, [request](const LaneKind* other) {
    return other->Claims(request.first(wire::kLaneHelloBytes));
  });
  return found == others.end() ? nullptr : *found;
}

void TcpListener::Impl::DecideOther(LaneKind& other, Descriptor socket,
                                    std::span<const std::byte> request, const Origin& origin) {
  wire::LaneRefusal refusal = wire::LaneRefusal::kNone;
  switch (other.Decide(socket, request, origin.text, refusal)) {
    case LaneKind::Outcome::kTaken: return;
    case LaneKind::Outcome::kRefused: return Refuse(socket, refusal);
    case LaneKind::Outcome::kForm: return CountRefusedForm();
  }
}

wire::LaneRefusal TcpListener::Impl::Judge(const wire::LaneHello& hello, const Origin& origin,
                                           std::uint8_t& version) {
  const std::optional<std::uint8_t> common = CommonVersion(hello.version_min, hello.version_max);
  version = common.value_or(0);
  // The gate consumes the nonce, so check the versions first.
  return common ? gate.Admit(hello, origin.text) : wire::LaneRefusal::kVersion;
}

void TcpListener::Impl::Decide(Descriptor socket, std::span<const std::byte> request,
                               const Origin& origin) {
  wire::LaneHello hello;
  if (request.size() > wire::kLaneHelloBytes) {
    return DecideOther(*FindOther(request), std::move(socket), request, origin);
  }
  // Do not answer: the peer does not speak this protocol.
  if (!wire::DecodeLaneHello(request, hello)) return CountRefusedForm();
  // The hello was sent unencrypted, so its nonce may have been intercepted.
  if (tls) return Refuse(socket, wire::LaneRefusal::kEncryption);
  std::uint8_t version = 0;
  const wire::LaneRefusal refusal = Judge(hello, origin, version);
  if (refusal != wire::LaneRefusal::kNone) return Refuse(socket, refusal);
  SendWelcome(socket, WelcomeOf(version));
  CountAccepted();
  gate.Attach(hello, std::make_unique<TcpConnection>(std::move(socket), version, limits),
              origin.text);
}

void TcpListener::Impl::DecideAfter(std::unique_ptr<Handshake> handshake, Descriptor socket,
                                    const Origin& origin) {
  auto& done = static_cast<TlsHandshake&>(*handshake);
  wire::LaneHello hello;
  // The handshake's key must be the key of the lane that the hello asks for.
  if (!wire::DecodeLaneHello(done.request(), hello) || !done.IsFor(hello)) {
    return CountRefusedForm();
  }
  std::uint8_t version = 0;
  const wire::LaneRefusal refusal = Judge(hello, origin, version);
  wire::LaneWelcome welcome = WelcomeOf(version);
  welcome.refusal = refusal;
  done.Answer(welcome);
  if (refusal != wire::LaneRefusal::kNone) return CountRefusal(refusal);
  CountAccepted();
  gate.Attach(
      hello,
      std::make_unique<TlsConnection>(std::move(socket), done.TakeSession(), version, limits),
      origin.text);
}

}  // namespace phub::transport
