#include "common/transport/stream/stream_transport.h"

#include "common/transport/form.h"

namespace phub::transport {

// One system call can send a whole turn.
static_assert(kTurnBytes == kGatherBytes);

StreamTransport::StreamTransport(std::uint32_t connections_max, std::size_t linger_bytes)
    : TurnTransport(connections_max), linger_(linger_bytes) {}
StreamTransport::~StreamTransport() = default;

StreamConnection* StreamTransport::Find(ConnectionId id) {
  StreamEntry* entry = table_.Live(id);
  return entry == nullptr || entry->forgotten ? nullptr : entry->connection;
}

ConnectionId StreamTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  StreamEntry* entry = AdoptAs<StreamConnection>(
      connection, landing,
      [this](StreamConnection& stream, ConnectionId id) { return Watch(stream, id); });
  if (entry == nullptr) return {};
  table_.MakeReady(*entry);
  return table_.IdOf(*entry);
}

void StreamTransport::Push(StreamEntry& entry,
                           std::span<const std::byte, wire::kHeaderBytes> header,
                           const SendRequest& request) {
  const std::span<const std::byte> none;
  const bool is_inline = !LandsInSlot(request.header.kind);
  entry.sender().Push(header, is_inline ? request.payload : none,
                      is_inline ? none : request.payload, request.cookie, request.notify_sent);
}

void StreamTransport::KeepAlive(StreamEntry& entry) {
  StreamSender& sender = entry.sender();
  const bool quiet = !sender.has_unsent() && sender.pushed_count() == entry.pushed_before;
  if (quiet && !sender.full()) {
    sender.Push(KeepAliveHeader(), {}, {}, /*cookie=*/0, /*notify_sent=*/false);
    std::size_t bytes = wire::kHeaderBytes;
    Send(entry, bytes);
  }
  entry.pushed_before = sender.pushed_count();
}

Activity StreamTransport::Observe(const StreamEntry& entry) const {
  return {.received = entry.connection->receiver_.received_bytes(), .read_all = entry.receive_idle};
}

void StreamTransport::Send(StreamEntry& entry, std::size_t& turn_bytes) {
  if (entry.write_failed) return;
  if (entry.sender().Flush(*entry.connection, entry.writable, turn_bytes)) return;
  // Read the data that the peer sent before the failure; the read after that reports the reason.
  entry.write_failed = true;
  entry.readable = true;
  entry.receive_idle = false;
  entry.sender().DropUnsent();
}

const ReceivedMessage* StreamTransport::Receive(StreamEntry& entry, std::size_t& turn_bytes) {
  const std::size_t before = turn_bytes;
  const StreamReceiver::Result result = entry.connection->receiver_.Receive(
      *entry.connection, entry.landing, entry.readable, turn_bytes);
  linger_.Received(before - turn_bytes, now_);
  if (turn_bytes < before) NoteFlow(entry, entry.connection->receiver_.inside_message());
  entry.starved = result.outcome == StreamReceiver::Outcome::kStarved;
  entry.receive_idle = result.outcome == StreamReceiver::Outcome::kBlocked;
  if (result.outcome == StreamReceiver::Outcome::kMessage) return result.message;
  if (result.outcome == StreamReceiver::Outcome::kEnded) {
    const bool orderly = result.error == TransportError::kPeerClosed && !entry.write_failed;
    const bool breach = result.error == TransportError::kProtocol;
    End(entry, orderly || breach ? result.error : TransportError::kReset, result.protocol_error);
  } else if (entry.receive_idle && entry.write_failed) {
    End(entry, TransportError::kReset, ProtocolError::kNone);
  }
  return nullptr;
}

void StreamTransport::ReleaseMessage(StreamEntry& entry, const ReceivedMessage* message) {
  entry.connection->receiver_.Release(message);
}

bool StreamTransport::HasWork(const StreamEntry& entry) const {
  if (CanSend(entry)) return true;
  return !entry.receive_idle && !entry.starved;
}

void StreamTransport::StopServing(StreamEntry& entry) {
  NoteFlow(entry, false);
  entry.connection->Shutdown();
  Unwatch(*entry.connection);
}

bool StreamTransport::Arm() {
  CollectReadiness();
  return table_.ready_count() == 0;
}

void StreamTransport::Tick(TimeNs now) { now_ = now; }

DurationNs StreamTransport::TakeLinger(TimeNs now) {
  // Do not linger if a connection could receive or send now. Requests for which a socket had no
  // room may wait.
  if (table_.ready_count() > 0) return 0;
  const bool flows = flowing_count_ > 0;
  ++interval_;
  flowing_count_ = 0;
  return linger_.Take(now, flows);
}

void StreamTransport::NoteFlow(StreamEntry& entry, bool flows) {
  if ((entry.flowing_in == interval_) == flows) return;
  entry.flowing_in = flows ? interval_ : 0;
  PHUB_CHECK(flows || flowing_count_ > 0);
  flowing_count_ += flows ? 1 : -1;
}

void StreamTransport::MarkReady(ConnectionId id, bool readable, bool writable) {
  StreamEntry* entry = table_.Live(id);
  if (entry == nullptr || entry->ends()) return;
  if (readable) {
    entry->readable = true;
    entry->receive_idle = false;
  }
  if (writable) entry->writable = true;
  if (CanProgress(*entry)) table_.MakeReady(*entry);
}

}  // namespace phub::transport
