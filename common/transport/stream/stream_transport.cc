#include "common/transport/stream/stream_transport.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::transport {
namespace {

// One turn of one connection. Bytes: a gather's worth, so that a turn is worth its calls and a lane
// does not keep the others waiting for more than some 100 us. Messages: half of a usual burst, so
// that a lane of small messages leaves room in it for others.
constexpr std::size_t kTurnBytes = kGatherBytes;
constexpr std::uint32_t kTurnMessages = 32;
// One Poll, over all connections: about a millisecond of copying.
constexpr std::size_t kPollBytes = 8 * kTurnBytes;

}  // namespace

struct StreamTransport::Entry {
  StreamConnection* connection = nullptr;  // null: the entry is free
  std::span<const LandingSlot> landing;
  std::uint32_t generation = 1;
  bool in_ready = false;
  bool readable = false;                          // the stream may have bytes
  bool writable = false;                          // the stream may have room
  bool receive_idle = false;                      // until readable, receiving can do nothing
  bool starved = false;                           // until a Release, receiving can do nothing
  bool write_failed = false;                      // reading will tell why
  TransportError ending = TransportError::kNone;  // not kNone: only kSent and kClosed are left
  ProtocolError protocol_error = ProtocolError::kNone;
};

StreamTransport::StreamTransport(std::uint32_t connections_max)
    : connections_max_(connections_max),
      entries_(std::make_unique<Entry[]>(connections_max)),
      free_(std::make_unique<std::uint32_t[]>(connections_max)),
      free_count_(connections_max),
      ready_(std::make_unique<std::uint32_t[]>(connections_max)) {
  PHUB_CHECK(connections_max > 0);
  for (std::uint32_t i = 0; i < connections_max; ++i) free_[i] = connections_max - 1 - i;
}

StreamTransport::~StreamTransport() = default;

StreamTransport::Entry* StreamTransport::Live(ConnectionId id) {
  if (id.index >= connections_max_) return nullptr;
  Entry& entry = entries_[id.index];
  if (entry.connection == nullptr || entry.generation != id.generation) return nullptr;
  return &entry;
}

ConnectionId StreamTransport::IdOf(const Entry& entry) const {
  return {static_cast<std::uint32_t>(&entry - entries_.get()), entry.generation};
}

StreamConnection* StreamTransport::Find(ConnectionId id) {
  Entry* entry = Live(id);
  return entry == nullptr ? nullptr : entry->connection;
}

ConnectionId StreamTransport::Adopt(Connection& connection, std::span<const LandingSlot> landing) {
  auto* stream = dynamic_cast<StreamConnection*>(&connection);
  PHUB_CHECK(stream != nullptr, "adopted a connection of another transport");
  if (free_count_ == 0) return {};
  Entry& entry = entries_[free_[free_count_ - 1]];
  const ConnectionId id = IdOf(entry);
  if (!Watch(*stream, id)) return {};
  --free_count_;
  const std::uint32_t generation = entry.generation;
  const bool in_ready = entry.in_ready;
  entry = Entry{};
  entry.generation = generation;
  entry.in_ready = in_ready;
  entry.connection = stream;
  entry.landing = landing;
  entry.readable = true;
  entry.writable = true;
  MakeReady(entry);
  return id;
}

void StreamTransport::SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) {
  if (Entry* entry = Live(connection)) entry->landing = landing;
}

void StreamTransport::Close(ConnectionId connection) {
  Entry* entry = Live(connection);
  if (entry == nullptr || entry->ending != TransportError::kNone) return;
  End(*entry, TransportError::kLocalClosed, ProtocolError::kNone);
  MakeReady(*entry);
}

std::size_t StreamTransport::Post(std::span<const SendRequest> requests) {
  std::size_t taken = 0;
  while (taken < requests.size() && PushToAll(requests[taken])) ++taken;
  return taken;
}

bool StreamTransport::PushToAll(const SendRequest& request) {
  const bool is_inline = request.header.kind == wire::MessageKind::kRecord;
  PHUB_CHECK(request.header.payload_bytes == request.payload.size(), "header={} payload={}",
             request.header.payload_bytes, request.payload.size());
  std::array<std::byte, wire::kHeaderBytes> head;
  wire::EncodeHeader(request.header, head);
  const std::span<const std::byte> none;
  for (std::size_t i = 0; i < request.connections.size(); ++i) {
    Entry* entry = Live(request.connections[i]);
    if (entry == nullptr || entry->ending != TransportError::kNone || entry->write_failed) continue;
    if (!entry->connection->sender_.full()) {
      entry->connection->sender_.Push(head, is_inline ? request.payload : none,
                                      is_inline ? none : request.payload, request.cookie,
                                      request.notify_sent);
      if (entry->writable) MakeReady(*entry);
      continue;
    }
    // All or none: take back what the connections before this one were given.
    while (i-- > 0) {
      Entry* given = Live(request.connections[i]);
      if (given == nullptr || given->ending != TransportError::kNone || given->write_failed)
        continue;
      given->connection->sender_.PopBack();
    }
    return false;
  }
  return true;
}

std::size_t StreamTransport::Poll(std::span<Completion> completions) {
  CollectReadiness();
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
std::size_t StreamTransport::Serve(Entry& entry, std::span<Completion> completions,
                                   std::size_t& budget_bytes) {
  if (entry.ending == TransportError::kNone) Send(entry, budget_bytes);
  std::size_t count = ReportSent(entry, completions);
  if (entry.ending == TransportError::kNone) {
    count += Receive(entry, completions.subspan(count), budget_bytes);
  }
  if (entry.ending != TransportError::kNone && !entry.connection->sender_.has_unreported() &&
      count < completions.size()) {
    completions[count++] = Forget(entry);
    return count;
  }
  if (CanProgress(entry)) MakeReady(entry);
  return count;
}

void StreamTransport::Send(Entry& entry, std::size_t& budget_bytes) {
  if (entry.write_failed) return;
  StreamSender& sender = entry.connection->sender_;
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  if (!sender.Flush(*entry.connection, entry.writable, turn_bytes)) {
    // What the peer sent before it went is still to be read, and then the reason.
    entry.write_failed = true;
    entry.readable = true;
    entry.receive_idle = false;
    sender.DropUnsent();
  }
  budget_bytes -= before - turn_bytes;
}

std::size_t StreamTransport::ReportSent(Entry& entry, std::span<Completion> completions) {
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

std::size_t StreamTransport::Receive(Entry& entry, std::span<Completion> completions,
                                     std::size_t& budget_bytes) {
  StreamReceiver& receiver = entry.connection->receiver_;
  std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
  const std::size_t before = turn_bytes;
  const std::size_t limit = std::min<std::size_t>(completions.size(), kTurnMessages);
  std::size_t count = 0;
  entry.starved = false;
  entry.receive_idle = false;
  while (count < limit) {
    const StreamReceiver::Result result =
        receiver.Receive(*entry.connection, entry.landing, entry.readable, turn_bytes);
    if (result.outcome == StreamReceiver::Outcome::kMessage) {
      Completion& completion = completions[count++];
      completion = Completion{};
      completion.kind = CompletionKind::kReceived;
      completion.connection = IdOf(entry);
      completion.message = result.message;
      continue;
    }
    entry.starved = result.outcome == StreamReceiver::Outcome::kStarved;
    entry.receive_idle = result.outcome == StreamReceiver::Outcome::kBlocked;
    if (result.outcome == StreamReceiver::Outcome::kEnded) {
      const bool orderly = result.error == TransportError::kPeerClosed && !entry.write_failed;
      const bool breach = result.error == TransportError::kProtocol;
      End(entry, orderly || breach ? result.error : TransportError::kReset, result.protocol_error);
    } else if (entry.receive_idle && entry.write_failed) {
      End(entry, TransportError::kReset, ProtocolError::kNone);
    }
    break;
  }
  budget_bytes -= before - turn_bytes;
  return count;
}

bool StreamTransport::CanProgress(const Entry& entry) const {
  const StreamSender& sender = entry.connection->sender_;
  if (entry.ending != TransportError::kNone || sender.has_unreported()) return true;
  if (entry.writable && sender.has_unsent()) return true;
  return !entry.receive_idle && !entry.starved;
}

void StreamTransport::End(Entry& entry, TransportError error, ProtocolError protocol_error) {
  entry.ending = error;
  entry.protocol_error = protocol_error;
  entry.connection->sender_.DropUnsent();
  entry.connection->Shutdown();
  Unwatch(*entry.connection);
}

// Frees the entry; returns its last completion.
Completion StreamTransport::Forget(Entry& entry) {
  Completion completion;
  completion.kind = CompletionKind::kClosed;
  completion.error = entry.ending;
  completion.protocol_error = entry.protocol_error;
  completion.connection = IdOf(entry);
  entry.connection = nullptr;
  entry.landing = {};
  // An index whose generations are used up is never given again.
  if (++entry.generation != UINT32_MAX) {
    free_[free_count_++] = static_cast<std::uint32_t>(&entry - entries_.get());
  }
  return completion;
}

void StreamTransport::Release(std::span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.kind != CompletionKind::kReceived) continue;
    Entry* entry = Live(completion.connection);
    if (entry == nullptr) continue;
    entry->connection->receiver_.Release(completion.message);
    if (entry->starved) {
      entry->starved = false;
      MakeReady(*entry);
    }
  }
}

bool StreamTransport::Arm() {
  CollectReadiness();
  return ready_head_ == ready_tail_;
}

void StreamTransport::Tick(TimeNs) {}

void StreamTransport::MarkReady(ConnectionId id, bool readable, bool writable) {
  Entry* entry = Live(id);
  if (entry == nullptr || entry->ending != TransportError::kNone) return;
  if (readable) {
    entry->readable = true;
    entry->receive_idle = false;
  }
  if (writable) entry->writable = true;
  if (CanProgress(*entry)) MakeReady(*entry);
}

void StreamTransport::MakeReady(Entry& entry) {
  if (entry.in_ready) return;
  entry.in_ready = true;
  ready_[ready_tail_++ % connections_max_] = static_cast<std::uint32_t>(&entry - entries_.get());
}

}  // namespace phub::transport
