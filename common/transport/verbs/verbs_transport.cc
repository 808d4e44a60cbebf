#include "common/transport/verbs/verbs_transport.h"

#include <infiniband/verbs.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/transport/region_address.h"
#include "common/transport/verbs/verbs_transport_entry.h"

namespace phub::transport {
namespace {

// One turn of one connection, and one Poll over all of them: as for byte streams.
constexpr std::size_t kTurnBytes = 1024 * 1024;
constexpr std::uint32_t kTurnMessages = 32;
constexpr std::size_t kPollBytes = 8 * kTurnBytes;

}  // namespace

VerbsTransport::VerbsTransport(std::vector<std::shared_ptr<VerbsQueue>> queues,
                               std::uint32_t connections_max)
    : queues_(std::move(queues)),
      connections_max_(connections_max),
      entries_(std::make_unique<Entry[]>(connections_max)),
      free_(std::make_unique<std::uint32_t[]>(connections_max)),
      free_count_(connections_max),
      ready_(std::make_unique<std::uint32_t[]>(connections_max)),
      forgotten_(std::make_unique<std::uint32_t[]>(connections_max)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      events_(std::make_unique<epoll_event[]>(kEventsPerCollect)),
      work_completions_(std::make_unique<ibv_wc[]>(kCompletionsAtOnce)) {
  PHUB_CHECK(connections_max > 0 && !queues_.empty());
  PHUB_CHECK(epoll_, "epoll_create1 errno={}", errno);
  for (std::uint32_t i = 0; i < connections_max; ++i) free_[i] = connections_max - 1 - i;
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = PackId({.index = i, .generation = kQueueGeneration});
    const int result = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, queues_[i]->descriptor(), &event);
    PHUB_CHECK(result == 0, "errno={}", errno);
  }
}

VerbsTransport::~VerbsTransport() = default;

// ---- Connections -------------------------------------------------------------------------------

VerbsTransport::Entry* VerbsTransport::Live(ConnectionId id) const {
  if (id.index >= connections_max_) return nullptr;
  Entry& entry = entries_[id.index];
  if (entry.connection == nullptr || entry.generation != id.generation) return nullptr;
  return &entry;
}

ConnectionId VerbsTransport::IdOf(const Entry& entry) const {
  return {static_cast<std::uint32_t>(&entry - entries_.get()), entry.generation};
}

ConnectionId VerbsTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  auto* verbs = dynamic_cast<VerbsConnection*>(&connection);
  PHUB_CHECK(verbs != nullptr, "adopted a connection of another transport");
  PHUB_CHECK(std::ranges::find(queues_, verbs->queue_) != queues_.end(), "another's queue");
  if (free_count_ == 0) FreeForgotten();
  if (free_count_ == 0) return {};
  Entry& entry = entries_[free_[free_count_ - 1]];
  const ConnectionId id = IdOf(entry);
  if (!Watch(*verbs, id)) return {};
  --free_count_;
  const std::uint32_t generation = entry.generation;
  const bool in_ready = entry.in_ready;
  entry = Entry{};
  entry.generation = generation;
  entry.in_ready = in_ready;
  entry.connection = verbs;
  entry.landing = landing;
  if (!Open(entry)) entry.failed = TransportError::kReset;
  MakeReady(entry);
  return id;
}

// The client speaks first, when it can receive; the daemon's end then says the keys.
bool VerbsTransport::Open(Entry& entry) {
  VerbsConnection& connection = *entry.connection;
  const ConnectionId id = IdOf(entry);
  if (!connection.PostReceives(connection.receives_max(), WorkRequestId(id, Half::kReceive))) {
    return false;
  }
  const std::uint64_t send_id = WorkRequestId(id, Half::kSend);
  if (connection.end() == VerbsEnd::kDaemon) return connection.BindWindows(send_id);
  return connection.sender_->SendTaken(connection.queue_pair_, send_id,
                                       connection.receiver_->TellTaken(), counters_, observer_);
}

bool VerbsTransport::Watch(const VerbsConnection& connection, ConnectionId id) const {
  if (!connection.socket_) return true;
  epoll_event event{};
  event.data.u64 = PackId(id);
  event.events = EPOLLRDHUP | EPOLLET;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket_.get(), &event) == 0;
}

void VerbsTransport::SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) {
  if (Entry* entry = Live(connection)) entry->landing = landing;
}

void VerbsTransport::Close(ConnectionId connection) {
  Entry* entry = Live(connection);
  if (entry == nullptr || entry->ending != TransportError::kNone) return;
  End(*entry, TransportError::kLocalClosed, ProtocolError::kNone);
  MakeReady(*entry);
}

void VerbsTransport::End(Entry& entry, TransportError error, ProtocolError protocol_error) {
  entry.ending = error;
  entry.protocol_error = protocol_error;
  VerbsConnection& connection = *entry.connection;
  connection.Invalidate();
  connection.sender_->DropUnsent();
  if (!connection.socket_) return;
  const int result =
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket_.get(), /*event=*/nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
}

// Returns the entry's last completion. The connection may be destroyed from then on.
Completion VerbsTransport::Forget(Entry& entry) {
  Completion completion;
  completion.kind = CompletionKind::kClosed;
  completion.error = entry.ending;
  completion.protocol_error = entry.protocol_error;
  completion.connection = IdOf(entry);
  entry.landing = {};
  entry.forgotten = true;
  forgotten_[forgotten_count_++] = completion.connection.index;
  return completion;
}

void VerbsTransport::FreeForgotten() {
  for (; forgotten_count_ > 0; --forgotten_count_) {
    const std::uint32_t index = forgotten_[forgotten_count_ - 1];
    Entry& entry = entries_[index];
    entry.connection = nullptr;
    entry.forgotten = false;
    // An index whose generations are used up is never given again.
    if (++entry.generation != kGenerationMax) free_[free_count_++] = index;
  }
}

// ---- Sending -----------------------------------------------------------------------------------

std::size_t VerbsTransport::Post(std::span<const SendRequest> requests) {
  std::size_t taken = 0;
  while (taken < requests.size() && PushToAll(requests[taken])) ++taken;
  return taken;
}

bool VerbsTransport::PushToAll(const SendRequest& request) {
  PHUB_CHECK(request.header.payload_bytes == request.payload.size(), "header={} payload={}",
             request.header.payload_bytes, request.payload.size());
  for (std::size_t i = 0; i < request.connections.size(); ++i) {
    Entry* entry = Live(request.connections[i]);
    if (entry == nullptr || entry->ending != TransportError::kNone) continue;
    if (!entry->connection->sender_->full()) {
      Push(*entry, request);
      continue;
    }
    entry->refused = true;
    // All or none: take back what the connections before this one were given.
    while (i-- > 0) {
      Entry* given = Live(request.connections[i]);
      if (given == nullptr || given->ending != TransportError::kNone) continue;
      given->connection->sender_->PopBack();
    }
    return false;
  }
  return true;
}

// What is asked for with the message (its answer), this end's device can receive where it is
// wanted, if that is registered: then the message says where.
void VerbsTransport::Push(Entry& entry, const SendRequest& request) {
  VerbsConnection& connection = *entry.connection;
  wire::MessageHeader header = request.header;
  const bool asks =
      header.kind == wire::MessageKind::kGradient || header.kind == wire::MessageKind::kPull;
  if (asks && connection.end() == VerbsEnd::kClient && header.chunk.value < entry.landing.size() &&
      header.reply_address == SharedAddress{}) {
    const LandingSlot& landing = entry.landing[header.chunk.value];
    const VerbsDomain& domain = *connection.domain_;
    const std::uint32_t region =
        landing.data == nullptr || landing.read_only
            ? UINT32_MAX
            : domain.Find(landing.data, landing.bytes_max, entry.region_hint);
    if (region != UINT32_MAX && domain.region(region).peer_writes) {
      const auto offset = static_cast<std::uint64_t>(landing.data - domain.region(region).data);
      header.reply_address = PackRegion(region, offset);
      connection.receiver_->NoteAsked(header);
    }
  }
  connection.sender_->Push(request, header);
  if (connection.sender_->CanFlush()) MakeReady(entry);
}

void VerbsTransport::Send(Entry& entry, std::size_t& budget_bytes) {
  VerbsConnection& connection = *entry.connection;
  if (!connection.peer_ready_ && connection.end() == VerbsEnd::kDaemon) return;
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  if (!connection.sender_->Flush(connection.queue_pair_, WorkRequestId(IdOf(entry), Half::kSend),
                                 turn_bytes, counters_, observer_)) {
    entry.failed = TransportError::kReset;
  }
  budget_bytes -= before - turn_bytes;
}

// Gives back the receives that were used up, and then tells the peer.
void VerbsTransport::Tell(Entry& entry) {
  VerbsConnection& connection = *entry.connection;
  const ConnectionId id = IdOf(entry);
  const std::uint32_t used = connection.receiver_->TakeUsedReceives();
  bool posted = used == 0 || connection.PostReceives(used, WorkRequestId(id, Half::kReceive));
  if (posted && connection.receiver_->WantsToTell() && connection.sender_->CanSendTaken()) {
    posted = connection.sender_->SendTaken(connection.queue_pair_, WorkRequestId(id, Half::kSend),
                                           connection.receiver_->TellTaken(), counters_, observer_);
  }
  if (!posted) entry.failed = TransportError::kReset;
}

std::size_t VerbsTransport::ReportSent(Entry& entry, std::span<Completion> completions) {
  std::size_t count = 0;
  std::uint64_t cookie = 0;
  while (count < completions.size() && entry.connection->sender_->NextSent(cookie)) {
    Completion& completion = completions[count++];
    completion = Completion{};
    completion.kind = CompletionKind::kSent;
    completion.connection = IdOf(entry);
    completion.cookie = cookie;
  }
  return count;
}

// ---- Polling -----------------------------------------------------------------------------------

std::size_t VerbsTransport::Poll(std::span<Completion> completions) {
  FreeForgotten();
  // Whose peer is gone, before what has arrived: then nothing that came before is missed.
  if (polls_until_collect_ == 0) CollectEvents();
  --polls_until_collect_;
  PollQueues();
  std::size_t count = 0;
  std::size_t budget_bytes = kPollBytes;
  // Each connection that is ready now has one turn at most.
  for (std::uint64_t turns = ready_tail_ - ready_head_; turns > 0; --turns) {
    if (count == completions.size() || budget_bytes == 0) break;
    Entry& entry = entries_[ready_[ready_head_++ % connections_max_]];
    entry.in_ready = false;
    if (entry.connection == nullptr || entry.forgotten) continue;
    count += Serve(entry, completions.subspan(count), budget_bytes);
  }
  return count;
}

// Requires room for at least one completion.
std::size_t VerbsTransport::Serve(Entry& entry, std::span<Completion> completions,
                                  std::size_t& budget_bytes) {
  entry.refused = false;
  if (entry.ending == TransportError::kNone && entry.failed == TransportError::kNone) {
    Send(entry, budget_bytes);
  }
  std::size_t count = ReportSent(entry, completions);
  if (entry.ending == TransportError::kNone) {
    count += Receive(entry, completions.subspan(count), budget_bytes);
  }
  if (entry.ending == TransportError::kNone && entry.failed == TransportError::kNone) Tell(entry);
  if (entry.ending != TransportError::kNone && !entry.connection->sender_->has_unreported() &&
      count < completions.size()) {
    completions[count++] = Forget(entry);
    return count;
  }
  if (CanProgress(entry)) MakeReady(entry);
  return count;
}

std::size_t VerbsTransport::Receive(Entry& entry, std::span<Completion> completions,
                                    std::size_t& budget_bytes) {
  VerbsReceiver& receiver = *entry.connection->receiver_;
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  const std::size_t limit = std::min<std::size_t>(completions.size(), kTurnMessages);
  std::size_t count = 0;
  entry.starved = false;
  while (count < limit) {
    const VerbsReceiver::Result result = receiver.Receive(entry.landing, turn_bytes, counters_);
    if (result.outcome == VerbsReceiver::Outcome::kMessage) {
      Completion& completion = completions[count++];
      completion = Completion{};
      completion.kind = CompletionKind::kReceived;
      completion.connection = IdOf(entry);
      completion.message = result.message;
      continue;
    }
    entry.starved = result.outcome == VerbsReceiver::Outcome::kStarved;
    if (result.outcome == VerbsReceiver::Outcome::kBroken) {
      Breach(entry, result.error);
    } else if (result.outcome == VerbsReceiver::Outcome::kBlocked &&
               entry.breach != ProtocolError::kNone) {
      Breach(entry, entry.breach);
    } else if (result.outcome == VerbsReceiver::Outcome::kBlocked &&
               entry.failed != TransportError::kNone && queues_drained_) {
      End(entry, entry.failed,
          receiver.inside_message() ? ProtocolError::kTruncated : ProtocolError::kNone);
    }
    break;
  }
  budget_bytes -= before - turn_bytes;
  return count;
}

void VerbsTransport::Breach(Entry& entry, ProtocolError error) {
  if (error == ProtocolError::kImmediate) ++counters_.refused_immediates;
  End(entry, TransportError::kProtocol, error);
}

void VerbsTransport::Release(std::span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.kind != CompletionKind::kReceived) continue;
    Entry* entry = Live(completion.connection);
    if (entry == nullptr || entry->forgotten) continue;  // it may have been destroyed by now
    entry->connection->receiver_->Release(completion.message);
    if (entry->starved) {
      entry->starved = false;
      MakeReady(*entry);
    }
  }
}

bool VerbsTransport::CanProgress(const Entry& entry) const {
  const VerbsConnection& connection = *entry.connection;
  if (entry.ending != TransportError::kNone || connection.sender_->has_unreported()) return true;
  const bool may_send = connection.peer_ready_ || connection.end() == VerbsEnd::kClient;
  if (may_send && entry.failed == TransportError::kNone && connection.sender_->CanFlush()) {
    return true;
  }
  if (entry.starved) return false;
  return entry.failed != TransportError::kNone || entry.breach != ProtocolError::kNone ||
         connection.receiver_->HasMore();
}

void VerbsTransport::MakeReady(Entry& entry) {
  if (entry.in_ready) return;
  entry.in_ready = true;
  ready_[ready_tail_++ % connections_max_] = static_cast<std::uint32_t>(&entry - entries_.get());
}

}  // namespace phub::transport
