#include "common/transport/shm/shm_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/base/check.h"
#include "common/transport/shm/shm_transport_entry.h"

namespace phub::transport {
namespace {

// One turn of one connection, and one Poll over all of them: as for byte streams.
constexpr std::size_t kTurnBytes = 1024 * 1024;
constexpr std::uint32_t kTurnMessages = 32;
constexpr std::size_t kPollBytes = 8 * kTurnBytes;

// Rings that one Poll looks at: a cache line or two each, mostly unchanged.
constexpr std::uint32_t kLooksPerPoll = 64;
// A Poll that finds nothing costs some 10 ns, asking the kernel some 300.
constexpr std::uint32_t kPollsPerCollect = 64;
constexpr DurationNs kCollectInterval = kMillisecond;
constexpr int kEventsPerCollect = 256;

std::uint64_t PackId(ConnectionId id) {
  return (static_cast<std::uint64_t>(id.generation) << 32) | id.index;
}

ConnectionId UnpackId(std::uint64_t packed) {
  return {static_cast<std::uint32_t>(packed), static_cast<std::uint32_t>(packed >> 32)};
}

}  // namespace

ShmTransport::ShmTransport(std::uint32_t connections_max)
    : connections_max_(connections_max),
      entries_(std::make_unique<Entry[]>(connections_max)),
      free_(std::make_unique<std::uint32_t[]>(connections_max)),
      free_count_(connections_max),
      ready_(std::make_unique<std::uint32_t[]>(connections_max)),
      served_(std::make_unique<std::uint32_t[]>(connections_max)),
      forgotten_(std::make_unique<std::uint32_t[]>(connections_max)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      events_(std::make_unique<epoll_event[]>(kEventsPerCollect)) {
  PHUB_CHECK(connections_max > 0);
  PHUB_CHECK(epoll_, "epoll_create1 errno={}", errno);
  for (std::uint32_t i = 0; i < connections_max; ++i) free_[i] = connections_max - 1 - i;
}

ShmTransport::~ShmTransport() = default;

// ---- Connections -------------------------------------------------------------------------------

ShmTransport::Entry* ShmTransport::Live(ConnectionId id) const {
  if (id.index >= connections_max_) return nullptr;
  Entry& entry = entries_[id.index];
  if (entry.connection == nullptr || entry.generation != id.generation) return nullptr;
  return &entry;
}

ConnectionId ShmTransport::IdOf(const Entry& entry) const {
  return {static_cast<std::uint32_t>(&entry - entries_.get()), entry.generation};
}

ConnectionId ShmTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  auto* shm = dynamic_cast<ShmConnection*>(&connection);
  PHUB_CHECK(shm != nullptr, "adopted a connection of another transport");
  if (free_count_ == 0) FreeForgotten();
  if (free_count_ == 0) return {};
  Entry& entry = entries_[free_[free_count_ - 1]];
  const ConnectionId id = IdOf(entry);
  if (!Watch(*shm, id)) return {};
  --free_count_;
  const std::uint32_t generation = entry.generation;
  const bool in_ready = entry.in_ready;
  entry = Entry{};
  entry.generation = generation;
  entry.in_ready = in_ready;
  entry.connection = shm;
  entry.landing = landing;
  entry.served_index = served_count_;
  served_[served_count_++] = id.index;
  MakeReady(entry);
  return id;
}

// The daemon's end never reads its socket, so it does not ask whether there is anything to read.
bool ShmTransport::Watch(const ShmConnection& connection, ConnectionId id) const {
  const bool client = connection.end() == ShmEnd::kClient;
  epoll_event event{};
  event.data.u64 = PackId(id);
  event.events = EPOLLRDHUP | EPOLLET;
  if (client) event.events |= EPOLLIN;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket(), &event) != 0) return false;
  if (client) return true;
  event.events = EPOLLIN | EPOLLET;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.doorbell(), &event) == 0) return true;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
  return false;
}

void ShmTransport::Unwatch(const ShmConnection& connection) const {
  int result = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
  PHUB_CHECK(result == 0, "socket={} errno={}", connection.socket(), errno);
  if (connection.end() == ShmEnd::kClient) return;
  result = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.doorbell(), nullptr);
  PHUB_CHECK(result == 0, "doorbell={} errno={}", connection.doorbell(), errno);
}

void ShmTransport::SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) {
  if (Entry* entry = Live(connection)) entry->landing = landing;
}

void ShmTransport::Close(ConnectionId connection) {
  Entry* entry = Live(connection);
  if (entry == nullptr || entry->ending != TransportError::kNone) return;
  End(*entry, TransportError::kLocalClosed, ProtocolError::kNone);
  MakeReady(*entry);
}

void ShmTransport::End(Entry& entry, TransportError error, ProtocolError protocol_error) {
  entry.ending = error;
  entry.protocol_error = protocol_error;
  entry.connection->sender_.DropUnsent();
  entry.connection->Shutdown();
  Unwatch(*entry.connection);
}

// Returns the entry's last completion. Its shared memory can be named until the next Poll: messages
// before that completion are still to be taken, of this lane and of others that answer to it.
Completion ShmTransport::Forget(Entry& entry) {
  Completion completion;
  completion.kind = CompletionKind::kClosed;
  completion.error = entry.ending;
  completion.protocol_error = entry.protocol_error;
  completion.connection = IdOf(entry);
  entry.landing = {};
  const std::uint32_t last = served_[--served_count_];
  served_[entry.served_index] = last;
  entries_[last].served_index = entry.served_index;
  entry.forgotten = true;
  forgotten_[forgotten_count_++] = completion.connection.index;
  return completion;
}

void ShmTransport::FreeForgotten() {
  for (; forgotten_count_ > 0; --forgotten_count_) {
    const std::uint32_t index = forgotten_[forgotten_count_ - 1];
    Entry& entry = entries_[index];
    entry.connection = nullptr;
    entry.forgotten = false;
    // An index whose generations are used up is never given again.
    if (++entry.generation != UINT32_MAX) free_[free_count_++] = index;
  }
}

// ---- Sending -----------------------------------------------------------------------------------

std::size_t ShmTransport::Post(std::span<const SendRequest> requests) {
  std::size_t taken = 0;
  while (taken < requests.size() && PushToAll(requests[taken])) ++taken;
  return taken;
}

bool ShmTransport::PushToAll(const SendRequest& request) {
  PHUB_CHECK(request.header.payload_bytes == request.payload.size(), "header={} payload={}",
             request.header.payload_bytes, request.payload.size());
  std::array<std::byte, wire::kHeaderBytes> header;
  wire::EncodeHeader(request.header, header);
  for (std::size_t i = 0; i < request.connections.size(); ++i) {
    Entry* entry = Live(request.connections[i]);
    if (entry == nullptr || entry->ending != TransportError::kNone) continue;
    ShmConnection& connection = *entry->connection;
    if (!connection.sender_.full()) {
      connection.sender_.Push(header, connection.PlaceOf(request), request.payload, request.cookie,
                              request.notify_sent);
      if (connection.sender_.CanFlush()) MakeReady(*entry);
      continue;
    }
    // All or none: take back what the connections before this one were given.
    while (i-- > 0) {
      Entry* given = Live(request.connections[i]);
      if (given == nullptr || given->ending != TransportError::kNone) continue;
      given->connection->sender_.PopBack();
    }
    return false;
  }
  return true;
}

void ShmTransport::Send(Entry& entry, std::size_t& budget_bytes) {
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  if (!entry.connection->sender_.Flush(turn_bytes)) {
    End(entry, TransportError::kProtocol, ProtocolError::kRing);
  }
  budget_bytes -= before - turn_bytes;
}

std::size_t ShmTransport::ReportSent(Entry& entry, std::span<Completion> completions) {
  std::size_t count = 0;
  std::uint64_t cookie = 0;
  while (count < completions.size() && entry.connection->sender_.NextSent(cookie)) {
    Completion& completion = completions[count++];
    completion = Completion{};
    completion.kind = CompletionKind::kSent;
    completion.connection = IdOf(entry);
    completion.cookie = cookie;
  }
  return count;
}

// ---- Polling -----------------------------------------------------------------------------------

std::size_t ShmTransport::Poll(std::span<Completion> completions) {
  FreeForgotten();
  if (sleeps_) SetSleeps(false);
  if (polls_until_collect_ == 0) CollectEvents();
  --polls_until_collect_;
  LookAround();
  std::size_t count = 0;
  std::size_t budget_bytes = kPollBytes;
  // Each connection that is ready now has one turn at most.
  for (std::uint64_t turns = ready_tail_ - ready_head_; turns > 0; --turns) {
    if (count == completions.size() || budget_bytes == 0) break;
    Entry& entry = entries_[ready_[ready_head_++ % connections_max_]];
    entry.in_ready = false;
    if (entry.connection == nullptr) continue;
    count += Serve(entry, completions.subspan(count), budget_bytes);
  }
  return count;
}

// Requires room for at least one completion.
std::size_t ShmTransport::Serve(Entry& entry, std::span<Completion> completions,
                                std::size_t& budget_bytes) {
  if (entry.ending == TransportError::kNone) Send(entry, budget_bytes);
  std::size_t count = ReportSent(entry, completions);
  if (entry.ending == TransportError::kNone) {
    count += Receive(entry, completions.subspan(count), budget_bytes);
  }
  ShmConnection& connection = *entry.connection;
  // Both looks have their effect: one ring tells of what was sent and of what was taken.
  const bool waits_for_more = connection.sender_.TakePeerSleeps();
  const bool waits_for_room = connection.receiver_.TakePeerSleeps();
  if (waits_for_more || waits_for_room) connection.RingPeer();
  if (entry.ending != TransportError::kNone && !connection.sender_.has_unreported() &&
      count < completions.size()) {
    completions[count++] = Forget(entry);
    return count;
  }
  if (CanProgress(entry)) MakeReady(entry);
  return count;
}

std::size_t ShmTransport::Receive(Entry& entry, std::span<Completion> completions,
                                  std::size_t& budget_bytes) {
  RingReceiver& receiver = entry.connection->receiver_;
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  const std::size_t limit = std::min<std::size_t>(completions.size(), kTurnMessages);
  std::size_t count = 0;
  entry.starved = false;
  while (count < limit) {
    const RingReceiver::Result result = receiver.Receive(entry.landing, turn_bytes);
    if (result.outcome == RingReceiver::Outcome::kMessage) {
      Completion& completion = completions[count++];
      completion = Completion{};
      completion.kind = CompletionKind::kReceived;
      completion.connection = IdOf(entry);
      completion.message = result.message;
      continue;
    }
    entry.starved = result.outcome == RingReceiver::Outcome::kStarved;
    if (result.outcome == RingReceiver::Outcome::kBroken) {
      End(entry, TransportError::kProtocol, result.error);
    } else if (result.outcome == RingReceiver::Outcome::kBlocked && entry.peer_gone) {
      End(entry, TransportError::kPeerClosed,
          receiver.inside_message() ? ProtocolError::kTruncated : ProtocolError::kNone);
    }
    break;
  }
  receiver.Publish();
  budget_bytes -= before - turn_bytes;
  return count;
}

void ShmTransport::Release(std::span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.kind != CompletionKind::kReceived) continue;
    Entry* entry = Live(completion.connection);
    if (entry == nullptr || entry->forgotten) continue;  // it may have been destroyed by now
    entry->connection->receiver_.Release(completion.message);
    if (entry->starved) {
      entry->starved = false;
      MakeReady(*entry);
    }
  }
}

bool ShmTransport::CanProgress(const Entry& entry) const {
  const RingSender& sender = entry.connection->sender_;
  if (entry.ending != TransportError::kNone || sender.has_unreported()) return true;
  if (sender.CanFlush()) return true;
  return !entry.starved && (entry.peer_gone || entry.connection->receiver_.HasMore());
}

void ShmTransport::MakeReady(Entry& entry) {
  if (entry.in_ready) return;
  entry.in_ready = true;
  ready_[ready_tail_++ % connections_max_] = static_cast<std::uint32_t>(&entry - entries_.get());
}

// ---- Noticing ----------------------------------------------------------------------------------

void ShmTransport::LookAround() {
  const std::uint32_t looks = std::min(served_count_, kLooksPerPoll);
  for (std::uint32_t i = 0; i < looks; ++i) {
    if (look_cursor_ >= served_count_) look_cursor_ = 0;
    Entry& entry = entries_[served_[look_cursor_++]];
    if (!entry.in_ready && CanProgress(entry)) MakeReady(entry);
  }
}

void ShmTransport::CollectEvents() {
  polls_until_collect_ = kPollsPerCollect;
  const int count = epoll_wait(epoll_.get(), events_.get(), kEventsPerCollect, 0);
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t events = events_[i].events;
    Entry* entry = Live(UnpackId(events_[i].data.u64));
    if (entry == nullptr || entry->ending != TransportError::kNone) continue;
    ShmConnection& connection = *entry->connection;
    if ((events & EPOLLIN) != 0) {
      if (connection.end() == ShmEnd::kClient) {
        connection.ClearBell();
      } else if (!connection.CountRing()) {
        End(*entry, TransportError::kProtocol, ProtocolError::kDoorbell);
      }
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) entry->peer_gone = true;
    if (CanProgress(*entry)) MakeReady(*entry);
  }
  // There may be more than fit: then the next Poll asks again.
  if (count == kEventsPerCollect) polls_until_collect_ = 1;
}

void ShmTransport::SetSleeps(bool sleeps) {
  for (std::uint32_t i = 0; i < served_count_; ++i) {
    const Entry& entry = entries_[served_[i]];
    ShmConnection& connection = *entry.connection;
    connection.receiver_.SetSleeps(sleeps && !entry.starved);
    connection.sender_.SetSleeps(sleeps && connection.sender_.has_unsent());
  }
  sleeps_ = sleeps;
  if (!sleeps) polls_until_collect_ = 0;  // whoever woke this end is to be asked for
}

bool ShmTransport::Arm() {
  CollectEvents();
  if (ready_head_ != ready_tail_) return false;
  SetSleeps(true);  // and only then look, or a wake-up is lost
  for (std::uint32_t i = 0; i < served_count_; ++i) {
    Entry& entry = entries_[served_[i]];
    if (CanProgress(entry)) MakeReady(entry);
  }
  return ready_head_ == ready_tail_;
}

void ShmTransport::Tick(TimeNs now) {
  if (now - collected_at_ < kCollectInterval) return;
  collected_at_ = now;
  polls_until_collect_ = 0;
}

// ---- Shared memory -----------------------------------------------------------------------------

SharedAddress ShmTransport::AddressOf(ConnectionId connection, const std::byte* data,
                                      std::size_t bytes) const {
  const Entry* entry = Live(connection);
  if (entry == nullptr || entry->connection->regions() == nullptr) return {};
  return entry->connection->regions()->AddressOf(data, bytes, entry->connection->region_hint_);
}

std::byte* ShmTransport::Resolve(ConnectionId connection, SharedAddress address,
                                 std::size_t bytes) const {
  const Entry* entry = Live(connection);
  if (entry == nullptr || entry->connection->regions() == nullptr) return nullptr;
  return entry->connection->regions()->ResolveForWriting(address, bytes);
}

std::byte* ShmTransport::PeerSlot(ConnectionId connection, SlotIndex slot) const {
  const Entry* entry = Live(connection);
  return entry == nullptr ? nullptr : entry->connection->peer_slots_.slot(slot);
}

}  // namespace phub::transport
