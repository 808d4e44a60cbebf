#include "common/transport/verbs/verbs_transport.h"

#include <infiniband/verbs.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/base/check.h"
#include "common/base/shortage.h"
#include "common/transport/region_address.h"
#include "common/transport/verbs/poll_limits.h"
#include "common/transport/verbs/work_request_id.h"

namespace phub::transport {

absl::StatusOr<std::unique_ptr<VerbsTransport>> VerbsTransport::Create(
    std::vector<std::shared_ptr<VerbsQueue>> queues, std::uint32_t connections_max) {
  absl::StatusOr<Descriptor> epoll = MakeEpoll();
  if (!epoll.ok()) return epoll.status();
  auto made =
      std::make_unique<VerbsTransport>(std::move(queues), connections_max, *std::move(epoll));
  if (made->watch_error_ == 0) return made;
  return DescriptorShortage("watch an RDMA queue", made->watch_error_);
}

VerbsTransport::VerbsTransport(std::vector<std::shared_ptr<VerbsQueue>> queues,
                               std::uint32_t connections_max, Descriptor epoll)
    : TurnTransport(connections_max),
      queues_(std::move(queues)),
      lost_(queues_.size(), false),
      epoll_(std::move(epoll)),
      events_(std::make_unique<epoll_event[]>(kEventsPerCollect)),
      work_completions_(std::make_unique<ibv_wc[]>(kCompletionsAtOnce)) {
  PHUB_CHECK(!queues_.empty());
  for (std::uint32_t i = 0; i < queues_.size(); ++i) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = PackId({.index = i, .generation = kQueueGeneration});
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, queues_[i]->descriptor(), &event) != 0) {
      watch_error_ = errno;
    }
  }
}

VerbsTransport::~VerbsTransport() = default;

// ---- Connections -------------------------------------------------------------------------------

ConnectionId VerbsTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  VerbsEntry* entry = AdoptAs<VerbsConnection>(
      connection, landing, [this](VerbsConnection& verbs, ConnectionId id) {
        PHUB_CHECK(std::ranges::find(queues_, verbs.queue_) != queues_.end(), "unknown queue");
        return Watch(verbs, id);
      });
  if (entry == nullptr) return {};
  if (entry->connection->queue_->broken()) {
    FailForLoss(*entry);
  } else if (!Open(*entry)) {
    Fail(*entry, TransportError::kReset, "cannot post requests to the queue pair");
  }
  table_.MakeReady(*entry);
  return table_.IdOf(*entry);
}

// The dialling end sends the first message, when it can receive; the daemon's end then sends the
// keys.
bool VerbsTransport::Open(const VerbsEntry& entry) {
  VerbsConnection& connection = *entry.connection;
  const ConnectionId id = table_.IdOf(entry);
  if (!connection.PostReceives(connection.receives_max(), WorkRequestId(id, Half::kReceive))) {
    return false;
  }
  const std::uint64_t send_id = WorkRequestId(id, Half::kSend);
  if (connection.end() != VerbsEnd::kClient && !connection.BindWindows(send_id)) return false;
  if (connection.end() == VerbsEnd::kDaemon) return true;
  return entry.sender().SendTaken(connection.queue_pair_, send_id, entry.receiver().TellTaken(),
                                  counters_, observer_);
}

bool VerbsTransport::Watch(const VerbsConnection& connection, ConnectionId id) const {
  if (!connection.socket_) return true;
  epoll_event event{};
  event.data.u64 = PackId(id);
  event.events = EPOLLRDHUP | EPOLLET;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.socket_.get(), &event) == 0;
}

void VerbsTransport::StopServing(VerbsEntry& entry) {
  VerbsConnection& connection = *entry.connection;
  connection.Invalidate();
  if (!connection.socket_) return;
  const int result =
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket_.get(), /*event=*/nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
}

bool VerbsTransport::CanPlace(ConnectionId connection, SharedAddress address,
                              std::size_t bytes) const {
  const VerbsEntry* entry = table_.Live(connection);
  return entry != nullptr && !entry->forgotten && entry->sender().HasPeerPlace(address, bytes);
}

// ---- A turn ------------------------------------------------------------------------------------

// If the message requests a reply and the reply's landing slot is in registered memory, the header
// gets its address, so that the daemon can write the reply there directly.
void VerbsTransport::Push(VerbsEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
                          const SendRequest& request) {
  const VerbsConnection& connection = *entry.connection;
  const wire::MessageKind kind = request.header.kind;
  const bool asks = kind == wire::MessageKind::kGradient || kind == wire::MessageKind::kPull;
  if (asks && connection.end() == VerbsEnd::kClient &&
      request.header.chunk.value < entry.landing.size()) {
    const LandingSlot& landing = entry.landing[request.header.chunk.value];
    const VerbsDomain& domain = *connection.domain_;
    const std::uint32_t region =
        landing.data == nullptr || landing.read_only
            ? kNoRegionIndex
            : domain.Find(landing.data, landing.bytes_max, entry.region_hint);
    if (region != kNoRegionIndex && domain.region(region).peer_writes) {
      wire::MessageHeader told = request.header;
      const auto offset = static_cast<std::uint64_t>(landing.data - domain.region(region).data);
      told.reply_address = PackRegion(region, offset);
      std::array<std::byte, wire::kHeaderBytes> bytes;
      wire::EncodeHeader(told, bytes);
      entry.receiver().NoteAsked(told);
      return entry.sender().Push(bytes, request);
    }
  }
  entry.sender().Push(header, request);
}

// A kTaken message with the present totals, in the room that is reserved for them. At most one is
// under way, so a peer that posts no receives is not flooded.
void VerbsTransport::KeepAlive(VerbsEntry& entry) {
  VerbsSender& sender = entry.sender();
  const bool quiet = !sender.has_posted() && sender.posted_count() == entry.posted_before;
  if (quiet && MaySend(entry) && sender.CanSendTaken()) {
    const ConnectionId id = table_.IdOf(entry);
    if (!sender.SendTaken(entry.connection->queue_pair_, WorkRequestId(id, Half::kSend),
                          entry.receiver().TellTaken(), counters_, observer_)) {
      Fail(entry, TransportError::kReset, "cannot post requests to the queue pair");
    }
  }
  entry.posted_before = sender.posted_count();
}

Activity VerbsTransport::Observe(const VerbsEntry& entry) const {
  return {.received = entry.arrivals, .read_all = !entry.receiver().HasMore() && queues_drained_};
}

// The daemon's end sends nothing before it has received the peer's first message.
bool VerbsTransport::MaySend(const VerbsEntry& entry) const {
  const bool ready = entry.connection->peer_ready_ || entry.connection->end() != VerbsEnd::kDaemon;
  return ready && entry.failed == TransportError::kNone;
}

bool VerbsTransport::CanSend(const VerbsEntry& entry) const {
  return MaySend(entry) && entry.sender().CanFlush();
}

void VerbsTransport::Send(VerbsEntry& entry, std::size_t& turn_bytes) {
  if (!CanSend(entry)) return;
  if (!entry.sender().Flush(entry.connection->queue_pair_,
                            WorkRequestId(table_.IdOf(entry), Half::kSend), turn_bytes, counters_,
                            observer_)) {
    Fail(entry, TransportError::kReset, "cannot post requests to the queue pair");
  }
}

const ReceivedMessage* VerbsTransport::Receive(VerbsEntry& entry, std::size_t& turn_bytes) {
  VerbsReceiver& receiver = entry.receiver();
  const VerbsReceiver::Result result = receiver.Receive(entry.landing, turn_bytes, counters_);
  if (result.outcome == VerbsReceiver::Outcome::kMessage) return result.message;
  entry.starved = result.outcome == VerbsReceiver::Outcome::kStarved;
  if (result.outcome == VerbsReceiver::Outcome::kBroken) {
    Breach(entry, result.error);
  } else if (result.outcome == VerbsReceiver::Outcome::kBlocked) {
    if (entry.breach != ProtocolError::kNone) {
      Breach(entry, entry.breach);
    } else if (entry.failed != TransportError::kNone && queues_drained_) {
      End(entry, entry.failed,
          receiver.inside_message() ? ProtocolError::kTruncated : ProtocolError::kNone);
    }
  }
  return nullptr;
}

void VerbsTransport::Breach(VerbsEntry& entry, ProtocolError error) {
  if (error == ProtocolError::kImmediate) counters_.immediates_refused.Add();
  End(entry, TransportError::kProtocol, error);
}

void VerbsTransport::ReleaseMessage(VerbsEntry& entry, const ReceivedMessage* message) {
  entry.receiver().Release(message);
}

// Posts the used receives again, and then sends kTaken to the peer.
void VerbsTransport::FinishTurn(VerbsEntry& entry) {
  if (entry.ends() || entry.failed != TransportError::kNone) return;
  VerbsConnection& connection = *entry.connection;
  const ConnectionId id = table_.IdOf(entry);
  const std::uint32_t used = entry.receiver().TakeUsedReceives();
  bool posted = used == 0 || connection.PostReceives(used, WorkRequestId(id, Half::kReceive));
  if (posted && entry.receiver().WantsToTell() && entry.sender().CanSendTaken()) {
    posted = entry.sender().SendTaken(connection.queue_pair_, WorkRequestId(id, Half::kSend),
                                      entry.receiver().TellTaken(), counters_, observer_);
  }
  if (!posted) Fail(entry, TransportError::kReset, "cannot post requests to the queue pair");
}

bool VerbsTransport::HasWork(const VerbsEntry& entry) const {
  if (CanSend(entry)) return true;
  if (entry.starved) return false;
  return entry.failed != TransportError::kNone || entry.breach != ProtocolError::kNone ||
         entry.receiver().HasMore();
}

std::vector<TransportCounter> VerbsTransport::ListCounters() const {
  std::vector<TransportCounter> counters;
  for (const VerbsCounterField& field : kVerbsCounterFields)
    counters.push_back({field.name, field.help, &(counters_.*field.value)});
  return counters;
}

}  // namespace phub::transport
