#include "common/transport/pending_lanes.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/log.h"
#include "common/wire/message.h"

namespace phub::transport {
namespace {

constexpr std::uint32_t kAcceptsPerPoll = 64;
constexpr int kEventsPerPoll = 256;
// Events of listening socket i have this key plus i; the others have the number of a place.
constexpr std::uint64_t kListenerKeys = std::uint64_t{1} << 32;
// How long accepting pauses when the process has no descriptor or memory left for a connection.
constexpr DurationNs kAcceptPause = 100 * kMillisecond;

}  // namespace

void Count(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

std::optional<std::uint8_t> CommonVersion(std::uint8_t version_min, std::uint8_t version_max) {
  const std::uint8_t version = std::min(version_max, wire::kLaneVersion);
  if (version < std::max(version_min, wire::kLaneVersionMin)) return std::nullopt;
  return version;
}

wire::LaneWelcome WelcomeOf(std::uint8_t version) {
  return {.version = version,
          .refusal = wire::LaneRefusal::kNone,
          .version_min = wire::kLaneVersionMin,
          .version_max = wire::kLaneVersion};
}

PendingLanes::PendingLanes(const Options& options, const Clock& clock)
    : options_(options), clock_(clock), places_(options.places_max) {
  PHUB_CHECK(options.places_max > 0 && options.places_per_origin_max > 0);
}

PendingLanes::~PendingLanes() = default;

absl::Status PendingLanes::Listen(std::vector<Descriptor> listening, const std::string& where) {
  listening_ = std::move(listening);
  epoll_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  for (std::size_t i = 0; epoll_ && i < listening_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = kListenerKeys + i;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listening_[i].get(), &event) != 0) epoll_ = {};
  }
  if (epoll_) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("cannot watch {}: {}", where, ErrnoText(errno)));
}

bool PendingLanes::PollOnce(DurationNs timeout) {
  epoll_event events[kEventsPerPoll];
  const int count = epoll_wait(epoll_.get(), events, kEventsPerPoll, WaitMilliseconds(timeout));
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  if (accept_paused_until_ != 0 && clock_.Now() >= accept_paused_until_) WatchAccepting(true);
  for (int i = 0; i < count; ++i) {
    // Accepting comes last, because only AcceptSome reuses places. So an event is always for the
    // connection that it was reported for: a socket leaves the epoll when its place is freed.
    if (events[i].data.u64 < kListenerKeys) Serve(places_[events[i].data.u64]);
  }
  const bool late = CloseLate();
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 >= kListenerKeys) {
      AcceptSome(listening_[events[i].data.u64 - kListenerKeys]);
    }
  }
  return count > 0 || late;
}

// The timeout for epoll_wait: ends at the next deadline at the latest.
int PendingLanes::WaitMilliseconds(DurationNs timeout) const {
  TimeNs next = accept_paused_until_ == 0 ? INT64_MAX : accept_paused_until_;
  for (const Place& place : places_) {
    if (place.socket) next = std::min(next, place.deadline);
  }
  if (next != INT64_MAX) {
    const DurationNs until = std::max<DurationNs>(0, next - clock_.Now()) + kMillisecond;
    if (timeout < 0 || until < timeout) timeout = until;
  }
  if (timeout < 0) return -1;
  return static_cast<int>(std::min<DurationNs>(timeout / kMillisecond, 60'000));
}

void PendingLanes::WatchAccepting(bool on) {
  for (std::size_t i = 0; i < listening_.size(); ++i) {
    epoll_event event{};
    event.events = on ? EPOLLIN : 0u;
    event.data.u64 = kListenerKeys + i;
    PHUB_CHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_[i].get(), &event) == 0, "errno={}",
               errno);
  }
  accept_paused_until_ = on ? 0 : clock_.Now() + kAcceptPause;
}

void PendingLanes::AcceptSome(const Descriptor& listening) {
  for (std::uint32_t i = 0; i < kAcceptsPerPoll; ++i) {
    Origin origin;
    Descriptor socket = Accept(listening, origin);
    if (socket) {
      GivePlace(std::move(socket), std::move(origin));
      continue;
    }
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return;
    if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
      Count(counters_.accept_errors);
      LogWarning("event=accept_paused transport={} reason=\"{}\" pause_ms={}",
                 options_.transport_name, ErrnoText(error), kAcceptPause / kMillisecond);
      WatchAccepting(false);
      return;
    }
    // Other errors (ECONNABORTED, network errors) concern that one connection only.
  }
}

// Returns a free place, which a silent peer may have just lost; null if all are in use.
PendingLanes::Place* PendingLanes::FindPlace(const Origin& origin) {
  Peers own;
  Place* free = nullptr;
  for (Place& place : places_) {
    if (!place.socket) {
      if (free == nullptr) free = &place;
    } else if (place.origin.key == origin.key) {
      own.Add(place);
    }
  }
  const bool has_limit = own.count >= options_.places_per_origin_max;
  if (!has_limit && free != nullptr) return free;
  Place* const displaced = has_limit ? own.oldest : OldestOfLargest(own);
  if (displaced == nullptr) return nullptr;
  Count(counters_.over_capacity);
  SendRefusal(TakeSocket(*displaced), wire::LaneRefusal::kCapacity);
  return displaced;
}

// The oldest silent peer of the origin that has the most peers; a newcomer's own origin only if no
// other has more.
PendingLanes::Place* PendingLanes::OldestOfLargest(const Peers& own) {
  std::map<std::array<std::byte, 16>, Peers> origins;
  for (Place& place : places_) {
    if (place.socket) origins[place.origin.key].Add(place);
  }
  const Peers* largest = &own;
  for (const auto& [key, peers] : origins) {
    if (peers.oldest == nullptr) continue;
    if (largest->oldest == nullptr || peers.count > largest->count) largest = &peers;
  }
  return largest->oldest;
}

void PendingLanes::GivePlace(Descriptor socket, Origin origin) {
  Place* const place = FindPlace(origin);
  if (place == nullptr) {
    Count(counters_.over_capacity);
    SendRefusal(socket, wire::LaneRefusal::kCapacity);
    return;
  }
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.u64 = static_cast<std::uint64_t>(place - places_.data());
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
    Count(counters_.accept_errors);
    SendRefusal(socket, wire::LaneRefusal::kCapacity);
    return;
  }
  place->socket = std::move(socket);
  place->origin = std::move(origin);
  place->number = ++arrivals_;
  place->deadline = clock_.Now() + options_.request_timeout;
  place->have = 0;
  place->want = kRequestBytes;
  count_.Add();
}

void PendingLanes::Serve(Place& place) {
  if (!place.socket) return;
  place.handshake != nullptr ? Advance(place) : Read(place);
}

// From a stream, reads not a byte more than the request, because the bytes that follow belong to
// the lane. From a packet socket, reads one byte more than a request has, to detect longer packets.
// There is no buffer for control messages, so the kernel closes descriptors that a client sends.
void PendingLanes::Read(Place& place) {
  const std::size_t bytes_max = options_.packets ? kRequestBytes + 1 : place.want;
  const ssize_t got = recv(place.socket.get(), place.bytes.data() + place.have,
                           bytes_max - place.have, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    Count(counters_.closed_early);
    TakeSocket(place);
    return;
  }
  place.have += static_cast<std::size_t>(got);
  if (!options_.packets && place.have == kRequestBytes) {
    place.want = RequestBytes(std::span(place.bytes).first(kRequestBytes));
    PHUB_CHECK(place.want >= kRequestBytes && place.want <= kRequestBytesMax);
  }
  if (!options_.packets && place.have < place.want) return;
  const std::span<const std::byte> first = std::span(place.bytes).first(place.have);
  if (!options_.packets) place.handshake = BeginHandshake(place.socket.get(), first);
  if (place.handshake == nullptr) return Decide(TakeSocket(place), first, place.origin);
  ++handshakes_;
  Advance(place);
}

void PendingLanes::Advance(Place& place) {
  switch (place.handshake->Advance()) {
    case Handshake::Step::kWaits:
      // This peer has a lane's key, or has replayed the first bytes of a peer that has it.
      if (handshakes_ <= options_.handshakes_max) return;
      Count(counters_.over_capacity);
      break;
    case Handshake::Step::kDone: {
      std::unique_ptr<Handshake> done = std::move(place.handshake);
      --handshakes_;
      return DecideAfter(std::move(done), TakeSocket(place), place.origin);
    }
    case Handshake::Step::kFailed: Count(counters_.refused_key); break;
  }
  TakeSocket(place);
}

// Takes the socket out of its place and stops watching it.
Descriptor PendingLanes::TakeSocket(Place& place) {
  if (place.handshake != nullptr) {
    place.handshake.reset();
    --handshakes_;
  }
  const int result = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, place.socket.get(), nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
  count_.Subtract();
  return Descriptor(place.socket.Release());
}

void PendingLanes::Refuse(const Descriptor& socket, wire::LaneRefusal refusal) {
  CountRefusal(refusal);
  SendRefusal(socket, refusal);
}

void PendingLanes::CountRefusal(wire::LaneRefusal refusal) {
  switch (refusal) {
    case wire::LaneRefusal::kVersion: return Count(counters_.refused_version);
    case wire::LaneRefusal::kNonce: return Count(counters_.refused_nonce);
    case wire::LaneRefusal::kJob: return Count(counters_.refused_job);
    case wire::LaneRefusal::kBusy: return Count(counters_.refused_busy);
    case wire::LaneRefusal::kCapacity: return Count(counters_.refused_capacity);
    case wire::LaneRefusal::kEncryption: return Count(counters_.refused_plain);
    case wire::LaneRefusal::kNone: break;
  }
  PHUB_CHECK(false, "refusal kNone was counted");
}

// One call is enough: 16 bytes fit into the empty buffer of a new socket. It does not matter if the
// peer has closed the connection.
void SendWelcome(const Descriptor& socket, const wire::LaneWelcome& welcome) {
  std::array<std::byte, wire::kLaneWelcomeBytes> bytes;
  wire::EncodeLaneWelcome(welcome, bytes);
  [[maybe_unused]] const ssize_t put =
      send(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void SendRefusal(const Descriptor& socket, wire::LaneRefusal refusal) {
  wire::LaneWelcome welcome = WelcomeOf(0);
  welcome.refusal = refusal;
  SendWelcome(socket, welcome);
}

// The deadline is counted from the accept, so a peer cannot extend it by sending slowly.
bool PendingLanes::CloseLate() {
  if (count() == 0) return false;
  const TimeNs now = clock_.Now();
  bool any = false;
  for (Place& place : places_) {
    if (!place.socket || now < place.deadline) continue;
    Count(counters_.timeouts);
    TakeSocket(place);
    any = true;
  }
  return any;
}

}  // namespace phub::transport
