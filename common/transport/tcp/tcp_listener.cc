#include "common/transport/tcp/tcp_listener.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/transport/tcp/tcp_connection.h"
#include "common/transport/tcp/tcp_socket.h"

namespace phub::transport {
namespace {

constexpr int kBacklog = 1024;
constexpr std::uint32_t kAcceptsPerPoll = 64;
constexpr int kEventsPerPoll = 256;
constexpr std::uint64_t kListenerKey = UINT64_MAX;
// How long accepting rests when the process has no descriptor or memory left for a connection.
constexpr DurationNs kAcceptPause = 100 * kMillisecond;

using AddressKey = std::array<std::byte, 16>;

// What counts as one address: an IPv6 address, or an IPv4 address mapped into it.
AddressKey KeyOf(const SocketAddress& address) {
  AddressKey key{};
  if (address.storage.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address.storage);
    std::memcpy(key.data(), &v6->sin6_addr, key.size());
  } else {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    key[10] = key[11] = std::byte{0xFF};
    std::memcpy(key.data() + 12, &v4->sin_addr, 4);
  }
  return key;
}

// A connection whose hello is not whole.
struct Pending {
  Descriptor socket;  // none: the place is free
  SocketAddress address;
  AddressKey key{};
  TimeNs deadline = 0;
  std::size_t have = 0;
  std::array<std::byte, wire::kLaneHelloBytes> bytes;
};

void Count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

// One call: 16 bytes fit the empty buffer of a new socket. If the peer is gone, so be it.
void SendWelcome(int socket, const wire::LaneWelcome& welcome) {
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  wire::EncodeLaneWelcome(welcome, bytes);
  [[maybe_unused]] const ssize_t put =
      send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void SendRefusal(int socket, wire::LaneRefusal refusal) {
  SendWelcome(socket, {.version = 0,
                       .refusal = refusal,
                       .version_min = wire::kLaneVersionMin,
                       .version_max = wire::kLaneVersion});
}

absl::StatusOr<Descriptor> Bind(const SocketAddress& address, const std::string& where) {
  Descriptor socket(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0) {
    return absl::UnavailableError(
        fmt::format("cannot make a socket for {}: {}", where, ErrnoText(errno)));
  }
  if (bind(socket.get(), address.get(), address.bytes) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    return absl::UnavailableError(
        fmt::format("cannot listen on {}: {}; choose another address or port, or stop what uses it",
                    where, ErrnoText(errno)));
  }
  return socket;
}

}  // namespace

struct TcpListener::State {
  State(const TcpListenerOptions& options_in, LaneGate& gate_in, const Clock& clock_in)
      : options(options_in), gate(gate_in), clock(clock_in), pending(options_in.pending_max) {}

  bool Poll(DurationNs timeout);
  int WaitMilliseconds(DurationNs timeout) const;
  void AcceptSome();
  void Place(Descriptor socket, const SocketAddress& address);
  void Read(std::uint32_t index);
  void Decide(Pending& peer);
  void CountRefusal(wire::LaneRefusal refusal);
  bool CloseLate();
  void WatchAccepting(bool on);
  void Free(Pending& peer) {
    peer.socket.Reset();
    --pending_count;
  }

  const TcpListenerOptions options;
  LaneGate& gate;
  const Clock& clock;
  std::vector<Pending> pending;
  std::uint32_t pending_count = 0;
  Descriptor listening;
  Descriptor epoll;
  std::uint16_t port = 0;
  TimeNs accept_paused_until = 0;  // 0: not paused
  TcpListenerCounters counters;
};

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Create(const TcpListenerOptions& options,
                                                                 LaneGate& gate,
                                                                 const Clock& clock) {
  PHUB_CHECK(options.pending_max > 0 && options.pending_per_address_max > 0);
  absl::StatusOr<std::vector<SocketAddress>> addresses =
      Resolve(options.host, options.port, /*passive=*/true);
  if (!addresses.ok()) return addresses.status();
  auto state = std::make_unique<State>(options, gate, clock);
  absl::StatusOr<Descriptor> listening =
      Bind(addresses->front(), HostPort(options.host, options.port));
  if (!listening.ok()) return listening.status();
  state->listening = *std::move(listening);
  SocketAddress bound;
  bound.bytes = sizeof bound.storage;
  PHUB_CHECK(getsockname(state->listening.get(), bound.get(), &bound.bytes) == 0, "errno={}",
             errno);
  state->port = PortOf(bound);
  state->epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerKey;
  if (!state->epoll ||
      epoll_ctl(state->epoll.get(), EPOLL_CTL_ADD, state->listening.get(), &event) != 0) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot watch the listening socket: {}", ErrnoText(errno)));
  }
  return std::unique_ptr<TcpListener>(new TcpListener(std::move(state)));
}

TcpListener::TcpListener(std::unique_ptr<State> state) : state_(std::move(state)) {}
TcpListener::~TcpListener() = default;

std::uint16_t TcpListener::port() const { return state_->port; }
const TcpListenerCounters& TcpListener::counters() const { return state_->counters; }
std::uint32_t TcpListener::pending_count() const { return state_->pending_count; }
bool TcpListener::PollOnce(DurationNs timeout) { return state_->Poll(timeout); }

bool TcpListener::State::Poll(DurationNs timeout) {
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(epoll.get(), events, kEventsPerPoll, WaitMilliseconds(timeout));
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  if (accept_paused_until != 0 && clock.Now() >= accept_paused_until) WatchAccepting(true);
  for (int i = 0; i < count; ++i) {
    // A pending connection that is freed leaves the epoll with its socket, and places are only
    // given out again by AcceptSome, so an event cannot meet another connection than its own:
    // accepting comes last.
    if (events[i].data.u64 != kListenerKey) Read(static_cast<std::uint32_t>(events[i].data.u64));
  }
  const bool late = CloseLate();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListenerKey) AcceptSome();
  }
  return count > 0 || late;
}

// Not past the next deadline.
int TcpListener::State::WaitMilliseconds(DurationNs timeout) const {
  TimeNs next = accept_paused_until == 0 ? INT64_MAX : accept_paused_until;
  for (const Pending& peer : pending) {
    if (peer.socket) next = std::min(next, peer.deadline);
  }
  if (next != INT64_MAX) {
    const DurationNs until = std::max<DurationNs>(0, next - clock.Now()) + kMillisecond;
    if (timeout < 0 || until < timeout) timeout = until;
  }
  if (timeout < 0) return -1;
  return static_cast<int>(std::min<DurationNs>(timeout / kMillisecond, 60'000));
}

void TcpListener::State::WatchAccepting(bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN : 0u;
  event.data.u64 = kListenerKey;
  PHUB_CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_MOD, listening.get(), &event) == 0, "errno={}",
             errno);
  accept_paused_until = on ? 0 : clock.Now() + kAcceptPause;
}

void TcpListener::State::AcceptSome() {
  for (std::uint32_t i = 0; i < kAcceptsPerPoll; ++i) {
    SocketAddress address;
    address.bytes = sizeof address.storage;
    Descriptor socket(
        accept4(listening.get(), address.get(), &address.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      Place(std::move(socket), address);
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      Count(counters.accept_errors);
      LogWarning("event=accept_paused reason=\"{}\" pause_ms={}", ErrnoText(error),
                 kAcceptPause / kMillisecond);
      WatchAccepting(false);
      return;
    }
    // The rest (ECONNABORTED and network errors) concerns that one connection only.
  }
}

void TcpListener::State::Place(Descriptor socket, const SocketAddress& address) {
  const AddressKey key = KeyOf(address);
  std::uint32_t of_address = 0;
  Pending* place = nullptr;
  for (Pending& peer : pending) {
    if (!peer.socket) {
      if (place == nullptr) place = &peer;
    } else if (peer.key == key) {
      ++of_address;
    }
  }
  if (place == nullptr || of_address >= options.pending_per_address_max) {
    Count(counters.over_capacity);
    SendRefusal(socket.get(), wire::LaneRefusal::kCapacity);
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = static_cast<std::uint64_t>(place - pending.data());
  if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    Count(counters.accept_errors);
    return;
  }
  place->socket = std::move(socket);
  place->address = address;
  place->key = key;
  place->deadline = clock.Now() + options.hello_timeout;
  place->have = 0;
  ++pending_count;
}

// Reads the hello and not a byte more: what follows belongs to the lane.
void TcpListener::State::Read(std::uint32_t index) {
  Pending& peer = pending[index];
  if (!peer.socket) return;
  const ssize_t got = recv(peer.socket.get(), peer.bytes.data() + peer.have,
                           peer.bytes.size() - peer.have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Count(counters.closed_early);
    Free(peer);
    return;
  }
  peer.have += static_cast<std::size_t>(got);
  if (peer.have == peer.bytes.size()) Decide(peer);
}

void TcpListener::State::Decide(Pending& peer) {
  const int result = epoll_ctl(epoll.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
  wire::LaneHello hello;
  if (!wire::DecodeLaneHello(peer.bytes, hello)) {
    // Whoever this is does not speak our language: no answer would be understood.
    Count(counters.refused_form);
    Free(peer);
    return;
  }
  const std::uint8_t version = std::min(hello.version_max, wire::kLaneVersion);
  const bool spoken = version >= std::max(hello.version_min, wire::kLaneVersionMin);
  std::string address = AddressText(peer.address);
  // A nonce is spent on admission only, so versions are settled before it is looked at.
  const wire::LaneRefusal refusal =
      spoken ? gate.Admit(hello, address) : wire::LaneRefusal::kVersion;
  if (refusal != wire::LaneRefusal::kNone) {
    CountRefusal(refusal);
    SendRefusal(peer.socket.get(), refusal);
    Free(peer);
    return;
  }
  SendWelcome(peer.socket.get(), {.version = version,
                                  .refusal = wire::LaneRefusal::kNone,
                                  .version_min = wire::kLaneVersionMin,
                                  .version_max = wire::kLaneVersion});
  Count(counters.accepted);
  auto connection =
      std::make_unique<TcpConnection>(Descriptor(peer.socket.Release()), version, options.limits);
  Free(peer);
  gate.Attach(hello, std::move(connection), std::move(address));
}

void TcpListener::State::CountRefusal(wire::LaneRefusal refusal) {
  switch (refusal) {
    case wire::LaneRefusal::kVersion:
      return Count(counters.refused_version);
    case wire::LaneRefusal::kNonce:
      return Count(counters.refused_nonce);
    case wire::LaneRefusal::kJob:
      return Count(counters.refused_job);
    case wire::LaneRefusal::kBusy:
      return Count(counters.refused_busy);
    case wire::LaneRefusal::kCapacity:
      return Count(counters.refused_capacity);
    case wire::LaneRefusal::kNone:
      break;
  }
  PHUB_CHECK(false, "counted a refusal that is none");
}

// However slowly a peer dribbles its bytes, its time is counted from the accept.
bool TcpListener::State::CloseLate() {
  if (pending_count == 0) return false;
  const TimeNs now = clock.Now();
  bool any = false;
  for (Pending& peer : pending) {
    if (!peer.socket || now < peer.deadline) continue;
    Count(counters.timeouts);
    Free(peer);
    any = true;
  }
  return any;
}

}  // namespace phub::transport
