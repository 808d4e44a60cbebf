#include "common/transport/shm/shm_listener.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_text.h"
#include "common/transport/shm/shm_address.h"

namespace phub::transport {
namespace {

constexpr int kBacklog = 1024;
constexpr std::uint32_t kAcceptsPerPoll = 64;
constexpr int kEventsPerPoll = 256;
constexpr std::uint64_t kListenerKey = UINT64_MAX;
// How long accepting rests when the process has no descriptor or memory left for a connection.
constexpr DurationNs kAcceptPause = 100 * kMillisecond;

static_assert(wire::kLaneHelloBytes == wire::kSharedBatchRequestBytes);

// A connection that has not asked for anything yet.
struct Pending {
  Descriptor socket;  // none: the place is free
  PeerCredentials credentials;
  TimeNs deadline = 0;
};

std::string ErrorText(int error) { return std::generic_category().message(error); }

void Count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

wire::LaneWelcome WelcomeOf(std::uint8_t version) {
  return {.version = version,
          .refusal = wire::LaneRefusal::kNone,
          .version_min = wire::kLaneVersionMin,
          .version_max = wire::kLaneVersion};
}

// The version that both speak, or none.
std::optional<std::uint8_t> CommonVersion(std::uint8_t version_min, std::uint8_t version_max) {
  const std::uint8_t version = std::min(version_max, wire::kLaneVersion);
  if (version < std::max(version_min, wire::kLaneVersionMin)) return std::nullopt;
  return version;
}

// Fits the empty buffer of a new socket. If the peer is gone, so be it.
void SendRefusal(int socket, wire::LaneRefusal refusal) {
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  wire::LaneWelcome welcome = WelcomeOf(0);
  welcome.refusal = refusal;
  wire::EncodeLaneWelcome(welcome, bytes);
  [[maybe_unused]] const bool sent = SendPacket(socket, bytes, {});
}

void SendBatch(int socket, std::uint8_t version, const BatchMemory& memory) {
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedBatchBytes> bytes;
  const std::span<std::byte> all(bytes);
  wire::SharedBatch batch;
  std::array<int, 2> descriptors;
  std::size_t count = 0;
  if (memory.worker != nullptr) {
    batch.worker_bytes = memory.worker->bytes();
    batch.worker_region = memory.worker_region;
    descriptors[count++] = memory.worker->descriptor();
  }
  if (memory.parameters != nullptr) {
    batch.parameters_bytes = memory.parameters->bytes();
    batch.parameters_region = memory.parameters_region;
    descriptors[count++] = memory.parameters->descriptor();
  }
  for (std::size_t i = 0; i < count; ++i) PHUB_CHECK(descriptors[i] >= 0, "nothing to pass");
  wire::EncodeLaneWelcome(WelcomeOf(version), all.first<wire::kLaneWelcomeBytes>());
  wire::EncodeSharedBatch(batch, all.last<wire::kSharedBatchBytes>());
  [[maybe_unused]] const bool sent = SendPacket(socket, bytes, std::span(descriptors).first(count));
}

}  // namespace

std::string ToString(const PeerCredentials& credentials) {
  return fmt::format("shm pid {} uid {}", credentials.pid, credentials.uid);
}

struct ShmListener::State {
  State(const ShmListenerOptions& options_in, ShmGate& gate_in, const Clock& clock_in)
      : options(options_in), gate(gate_in), clock(clock_in), pending(options_in.pending_max) {}

  bool Poll(DurationNs timeout);
  int WaitMilliseconds(DurationNs timeout) const;
  void AcceptSome();
  void Place(Descriptor socket);
  void Read(std::uint32_t index);
  void Decide(Pending& peer, std::span<const std::byte> request);
  void DecideLane(Pending& peer, const wire::LaneHello& hello);
  void DecideBatch(Pending& peer, const wire::SharedBatchRequest& request);
  void Refuse(Pending& peer, wire::LaneRefusal refusal);
  bool CloseLate();
  void WatchAccepting(bool on);
  void Free(Pending& peer) {
    peer.socket.Reset();
    --pending_count;
  }

  const ShmListenerOptions options;
  ShmGate& gate;
  const Clock& clock;
  std::string name;
  std::vector<Pending> pending;
  std::uint32_t pending_count = 0;
  Descriptor listening;
  Descriptor epoll;
  TimeNs accept_paused_until = 0;  // 0: not paused
  ShmListenerCounters counters;
};

absl::StatusOr<std::unique_ptr<ShmListener>> ShmListener::Create(const ShmListenerOptions& options,
                                                                 ShmGate& gate, const Clock& clock,
                                                                 Random& random) {
  PHUB_CHECK(options.pending_max > 0 && options.pending_per_user_max > 0);
  auto state = std::make_unique<State>(options, gate, clock);
  state->name = fmt::format("phub-{:016x}{:016x}", random.Next(), random.Next());
  const ShmAddress address(state->name);
  state->listening = Descriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int listening = state->listening.get();
  if (listening < 0 || bind(listening, address.get(), address.bytes) != 0 ||
      listen(listening, kBacklog) != 0) {
    return absl::UnavailableError(
        fmt::format("cannot listen on Unix socket @{}: {}", state->name, ErrorText(errno)));
  }
  state->epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListenerKey;
  if (!state->epoll || epoll_ctl(state->epoll.get(), EPOLL_CTL_ADD, listening, &event) != 0) {
    return absl::ResourceExhaustedError(
        fmt::format("cannot watch Unix socket @{}: {}", state->name, ErrorText(errno)));
  }
  return std::unique_ptr<ShmListener>(new ShmListener(std::move(state)));
}

ShmListener::ShmListener(std::unique_ptr<State> state) : state_(std::move(state)) {}
ShmListener::~ShmListener() = default;

const std::string& ShmListener::name() const { return state_->name; }
const ShmListenerCounters& ShmListener::counters() const { return state_->counters; }
std::uint32_t ShmListener::pending_count() const { return state_->pending_count; }
bool ShmListener::PollOnce(DurationNs timeout) { return state_->Poll(timeout); }

bool ShmListener::State::Poll(DurationNs timeout) {
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(epoll.get(), events, kEventsPerPoll, WaitMilliseconds(timeout));
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  if (accept_paused_until != 0 && clock.Now() >= accept_paused_until) WatchAccepting(true);
  for (int i = 0; i < count; ++i) {
    // Accepting comes last: a place that is freed here is given out again only there, so an event
    // cannot meet another connection than its own.
    if (events[i].data.u64 != kListenerKey) Read(static_cast<std::uint32_t>(events[i].data.u64));
  }
  const bool late = CloseLate();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListenerKey) AcceptSome();
  }
  return count > 0 || late;
}

// Not past the next deadline.
int ShmListener::State::WaitMilliseconds(DurationNs timeout) const {
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

void ShmListener::State::WatchAccepting(bool on) {
  epoll_event event{};
  event.events = on ? EPOLLIN : 0u;
  event.data.u64 = kListenerKey;
  PHUB_CHECK(epoll_ctl(epoll.get(), EPOLL_CTL_MOD, listening.get(), &event) == 0, "errno={}",
             errno);
  accept_paused_until = on ? 0 : clock.Now() + kAcceptPause;
}

void ShmListener::State::AcceptSome() {
  for (std::uint32_t i = 0; i < kAcceptsPerPoll; ++i) {
    Descriptor socket(accept4(listening.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket) {
      Place(std::move(socket));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      Count(counters.accept_errors);
      LogWarning("event=accept_paused transport=shm reason=\"{}\" pause_ms={}", ErrorText(error),
                 kAcceptPause / kMillisecond);
      WatchAccepting(false);
      return;
    }
    // The rest concerns that one connection only.
  }
}

void ShmListener::State::Place(Descriptor socket) {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) {
    Count(counters.accept_errors);
    return;
  }
  std::uint32_t of_user = 0;
  Pending* place = nullptr;
  for (Pending& peer : pending) {
    if (!peer.socket) {
      if (place == nullptr) place = &peer;
    } else if (peer.credentials.uid == credentials.uid) {
      ++of_user;
    }
  }
  if (place == nullptr || of_user >= options.pending_per_user_max) {
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
  place->credentials = {credentials.pid, credentials.uid, credentials.gid};
  place->deadline = clock.Now() + options.hello_timeout;
  ++pending_count;
}

void ShmListener::State::Read(std::uint32_t index) {
  Pending& peer = pending[index];
  if (!peer.socket) return;
  // A byte more than is right, so that a longer packet is seen to be one. Without room for control
  // messages: descriptors that a client sends are closed by the kernel.
  std::array<std::byte, wire::kLaneHelloBytes + 1> bytes;
  const ssize_t got = recv(peer.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Count(counters.closed_early);
    Free(peer);
    return;
  }
  const int result = epoll_ctl(epoll.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
  Decide(peer, std::span(bytes).first(static_cast<std::size_t>(got)));
}

void ShmListener::State::Decide(Pending& peer, std::span<const std::byte> request) {
  wire::LaneHello hello;
  wire::SharedBatchRequest batch;
  if (wire::DecodeLaneHello(request, hello)) {
    DecideLane(peer, hello);
  } else if (wire::DecodeSharedBatchRequest(request, batch)) {
    DecideBatch(peer, batch);
  } else {
    // Whoever this is does not speak our language: no answer would be understood.
    Count(counters.refused_form);
    Free(peer);
  }
}

// A nonce is spent on admission only, so versions are settled before it is looked at.
void ShmListener::State::DecideLane(Pending& peer, const wire::LaneHello& hello) {
  const std::optional<std::uint8_t> version = CommonVersion(hello.version_min, hello.version_max);
  if (!version) return Refuse(peer, wire::LaneRefusal::kVersion);
  const wire::LaneRefusal refusal = gate.Admit(hello, peer.credentials);
  if (refusal != wire::LaneRefusal::kNone) return Refuse(peer, refusal);
  const absl::StatusOr<LaneMemory> memory = gate.Memory(hello);
  absl::Status status = memory.status();
  if (memory.ok()) {
    auto connection = OfferShmLane(peer.socket, WelcomeOf(*version), *memory, options.limits);
    status = connection.status();
    if (status.ok()) {
      Count(counters.accepted);
      std::string description = ToString(peer.credentials);
      Free(peer);
      return gate.Attach(hello, *std::move(connection), std::move(description));
    }
  }
  LogWarning("event=lane_failed transport=shm rank={} core={} peer=\"{}\" reason=\"{}\"",
             hello.rank.value, hello.core.value, ToString(peer.credentials), MessageOf(status));
  Refuse(peer, wire::LaneRefusal::kCapacity);
}

void ShmListener::State::DecideBatch(Pending& peer, const wire::SharedBatchRequest& request) {
  const std::optional<std::uint8_t> version =
      CommonVersion(request.version_min, request.version_max);
  if (!version) return Refuse(peer, wire::LaneRefusal::kVersion);
  BatchMemory memory;
  const wire::LaneRefusal refusal = gate.AdmitBatch(request, peer.credentials, memory);
  if (refusal != wire::LaneRefusal::kNone) return Refuse(peer, refusal);
  Count(counters.batches);
  SendBatch(peer.socket.get(), *version, memory);
  Free(peer);
}

void ShmListener::State::Refuse(Pending& peer, wire::LaneRefusal refusal) {
  switch (refusal) {
    case wire::LaneRefusal::kVersion: Count(counters.refused_version); break;
    case wire::LaneRefusal::kNonce: Count(counters.refused_nonce); break;
    case wire::LaneRefusal::kJob: Count(counters.refused_job); break;
    case wire::LaneRefusal::kBusy: Count(counters.refused_busy); break;
    case wire::LaneRefusal::kCapacity: Count(counters.refused_capacity); break;
    case wire::LaneRefusal::kNone: PHUB_CHECK(false, "a refusal that is none");
  }
  SendRefusal(peer.socket.get(), refusal);
  Free(peer);
}

bool ShmListener::State::CloseLate() {
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
