#include "common/transport/shm/shm_transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// Rings that one Poll checks: one or two cache lines each, mostly unchanged.
constexpr std::uint32_t kLooksPerPoll = 64;
// A Poll that finds nothing costs about 10 ns; a call of epoll_wait costs about 300 ns.
constexpr std::uint32_t kPollsPerCollect = 64;
constexpr DurationNs kCollectInterval = kMillisecond;
constexpr int kEventsPerCollect = 256;
// A peer that awaits more messages than there are is rung after this time at the latest.
constexpr DurationNs kRingLaterMax = 4 * kMillisecond;

}  // namespace

ShmTransport::ShmTransport(std::uint32_t connections_max, Descriptor epoll)
    : TurnTransport(connections_max),
      epoll_(std::move(epoll)),
      events_(std::make_unique<epoll_event[]>(kEventsPerCollect)) {
  PHUB_CHECK(epoll_);
}

ShmTransport::~ShmTransport() = default;

// ---- Connections -------------------------------------------------------------------------------

ConnectionId ShmTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  ShmEntry* entry = AdoptAs<ShmConnection>(
      connection, landing, [this](ShmConnection& shm, ConnectionId id) { return Watch(shm, id); });
  if (entry == nullptr) return {};
  table_.MakeReady(*entry);
  return table_.IdOf(*entry);
}

// The daemon's end does not watch its socket for EPOLLIN, because it never reads it.
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

void ShmTransport::StopServing(ShmEntry& entry) {
  entry.connection->Shutdown();
  RingLater(entry, false);
  Unwatch(*entry.connection);
}

// ---- A turn ------------------------------------------------------------------------------------

void ShmTransport::Push(ShmEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
                        const SendRequest& request) {
  entry.sender().Push(header, entry.connection->PlaceOf(request), request.payload, request.cookie,
                      request.notify_sent);
}

Activity ShmTransport::Observe(const ShmEntry& entry) const {
  const RingReceiver& receiver = entry.connection->receiver_;
  return {.received = receiver.PeersActivity(), .read_all = !receiver.HasMore()};
}

void ShmTransport::Send(ShmEntry& entry, std::size_t& turn_bytes) {
  if (!entry.sender().Flush(turn_bytes)) {
    End(entry, TransportError::kProtocol, ProtocolError::kRing);
  }
}

const ReceivedMessage* ShmTransport::Receive(ShmEntry& entry, std::size_t& turn_bytes) {
  RingReceiver& receiver = entry.connection->receiver_;
  const RingReceiver::Result result = receiver.Receive(entry.landing, turn_bytes);
  if (result.outcome == RingReceiver::Outcome::kMessage) return result.message;
  entry.starved = result.outcome == RingReceiver::Outcome::kStarved;
  if (result.outcome == RingReceiver::Outcome::kBroken) {
    End(entry, TransportError::kProtocol, result.error);
  } else if (result.outcome == RingReceiver::Outcome::kBlocked && entry.peer_gone) {
    End(entry, TransportError::kPeerClosed,
        receiver.inside_message() ? ProtocolError::kTruncated : ProtocolError::kNone);
  }
  return nullptr;
}

void ShmTransport::ReleaseMessage(ShmEntry& entry, const ReceivedMessage* message) {
  entry.connection->receiver_.Release(message);
}

void ShmTransport::FinishTurn(ShmEntry& entry) {
  ShmConnection& connection = *entry.connection;
  connection.receiver_.Publish();
  // Call both TakePeerSleeps, because each clears a flag. One ring reports both messages and room.
  const bool waits_for_room = connection.receiver_.TakePeerSleeps();
  const RingSender::Bell bell = connection.sender_.TakePeerSleeps(waits_for_room);
  if (bell == RingSender::Bell::kNow || waits_for_room) connection.RingPeer();
  RingLater(entry, bell == RingSender::Bell::kLater && !entry.ends());
}

void ShmTransport::RingLater(ShmEntry& entry, bool later) {
  if (later == entry.ring_later) return;
  entry.ring_later = later;
  if (later && later_count_ == 0) later_since_ = now_;
  PHUB_CHECK(later || later_count_ > 0);
  later ? ++later_count_ : --later_count_;
}

void ShmTransport::OnIdle() {
  for (std::uint32_t i = 0; later_count_ > 0 && i < table_.served_count(); ++i) {
    ShmEntry& entry = table_.served(i);
    if (!entry.ring_later) continue;
    RingLater(entry, false);
    ShmConnection& connection = *entry.connection;
    if (connection.sender_.TakePeerSleeps(true) == RingSender::Bell::kNow) connection.RingPeer();
  }
}

void ShmTransport::Await(ConnectionId connection, std::uint32_t messages) {
  if (ShmEntry* entry = table_.Live(connection)) entry->awaited = messages;
}

bool ShmTransport::HasWork(const ShmEntry& entry) const {
  if (entry.sender().CanFlush()) return true;
  return !entry.starved && (entry.peer_gone || entry.connection->receiver_.HasMore());
}

// ---- Readiness ---------------------------------------------------------------------------------

void ShmTransport::Notice() {
  if (sleeps_) SetSleeps(false);
  if (polls_until_collect_ == 0) CollectEvents();
  --polls_until_collect_;
  LookAround();
}

void ShmTransport::LookAround() {
  const std::uint32_t looks = std::min(table_.served_count(), kLooksPerPoll);
  for (std::uint32_t i = 0; i < looks; ++i) {
    if (look_cursor_ >= table_.served_count()) look_cursor_ = 0;
    ShmEntry& entry = table_.served(look_cursor_++);
    if (!entry.in_ready && CanProgress(entry)) table_.MakeReady(entry);
  }
}

void ShmTransport::CollectEvents() {
  polls_until_collect_ = kPollsPerCollect;
  if (table_.served_count() == 0) return;  // nothing is watched
  const int count = epoll_wait(epoll_.get(), events_.get(), kEventsPerCollect, 0);
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  for (int i = 0; i < count; ++i) {
    const std::uint32_t events = events_[i].events;
    ShmEntry* entry = table_.Live(UnpackId(events_[i].data.u64));
    if (entry == nullptr || entry->ends()) continue;
    ShmConnection& connection = *entry->connection;
    if ((events & EPOLLIN) != 0) {
      if (connection.end() == ShmEnd::kClient) {
        connection.ClearBell();
      } else if (!connection.CountRing()) {
        End(*entry, TransportError::kProtocol, ProtocolError::kDoorbell);
      }
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) entry->peer_gone = true;
    if (CanProgress(*entry)) table_.MakeReady(*entry);
  }
  // If the array was full, there may be more events: the next Poll collects them.
  if (count == kEventsPerCollect) polls_until_collect_ = 1;
}

void ShmTransport::SetSleeps(bool sleeps) {
  for (std::uint32_t i = 0; i < table_.served_count(); ++i) {
    const ShmEntry& entry = table_.served(i);
    ShmConnection& connection = *entry.connection;
    sleeps && !entry.starved ? connection.receiver_.Sleep(entry.awaited)
                             : connection.receiver_.WakeUp();
    connection.sender_.SetSleeps(sleeps && connection.sender_.has_unsent());
  }
  sleeps_ = sleeps;
  if (!sleeps) polls_until_collect_ = 0;  // the next Poll collects the event that woke this end
}

bool ShmTransport::Arm() {
  OnIdle();
  CollectEvents();
  if (table_.ready_count() > 0) return false;
  SetSleeps(true);  // before checking the rings, or a wake-up could be lost
  for (std::uint32_t i = 0; i < table_.served_count(); ++i) {
    ShmEntry& entry = table_.served(i);
    if (CanProgress(entry)) table_.MakeReady(entry);
  }
  return table_.ready_count() == 0;
}

void ShmTransport::Tick(TimeNs now) {
  now_ = now;
  if (later_count_ > 0 && now - later_since_ >= kRingLaterMax) OnIdle();
  if (now - collected_at_ < kCollectInterval) return;
  collected_at_ = now;
  polls_until_collect_ = 0;
}

// ---- Shared memory -----------------------------------------------------------------------------

SharedAddress ShmTransport::AddressOf(ConnectionId connection, const std::byte* data,
                                      std::size_t bytes) const {
  const ShmEntry* entry = table_.Live(connection);
  if (entry == nullptr || entry->connection->regions() == nullptr) return {};
  return entry->connection->regions()->AddressOf(data, bytes, entry->connection->region_hint_);
}

std::byte* ShmTransport::Resolve(ConnectionId connection, SharedAddress address,
                                 std::size_t bytes) const {
  const ShmEntry* entry = table_.Live(connection);
  if (entry == nullptr || entry->connection->regions() == nullptr) return nullptr;
  return entry->connection->regions()->ResolveForWriting(address, bytes);
}

std::byte* ShmTransport::PeerSlot(ConnectionId connection, SlotIndex slot) const {
  const ShmEntry* entry = table_.Live(connection);
  return entry == nullptr ? nullptr : entry->connection->peer_slots_.slot(slot);
}

}  // namespace phub::transport
