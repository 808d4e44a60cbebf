// Common base of the transports that poll many connections (tcp, shm, the simulation): a table of
// entries, a queue of requests for each connection, turns of bounded size, and closing. A subclass
// implements a connection's turn and reports which connections are ready.
//
// A turn of a connection moves a bounded number of bytes and messages. If work is left, the
// connection goes to the back of the ring of ready connections. A connection is in the ring if a
// turn could make progress, so the thread may block if the ring is empty.
//
// `Entry` derives from ConnectionEntry and has sender(), the connection's bounded queue with
// full(), PopBack(), has_unreported(), NextSent() and DropUnsent(). Its CheckInvariants() aborts if
// the invariants of sender or receiver are violated; checked builds call it after each turn.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "common/base/owner_thread.h"
#include "common/transport/connection_table.h"
#include "common/transport/transport.h"

namespace phub::transport {

// Limits of one connection's turn. Bytes: enough to amortize the system calls, but other lanes wait
// for about 100 us at most. Messages: half of the usual number of completions in a Poll, so that a
// lane of small messages leaves room for others.
inline constexpr std::size_t kTurnBytes = 1024 * 1024;
inline constexpr std::uint32_t kTurnMessages = 32;
// Limit of one Poll over all connections: about 1 ms of copying.
inline constexpr std::size_t kPollBytes = 8 * kTurnBytes;

template <typename Entry>
class TurnTransport : public Transport {
 public:
  void SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) final {
    owner_.AssertOwned();
    if (Entry* entry = table_.Live(connection)) entry->landing = landing;
  }

  void Close(ConnectionId connection) final {
    owner_.AssertOwned();
    Entry* entry = table_.Live(connection);
    if (entry == nullptr || entry->ends()) return;
    End(*entry, TransportError::kLocalClosed, ProtocolError::kNone);
    table_.MakeReady(*entry);
  }

  void Hold(ConnectionId connection, bool held) final {
    owner_.AssertOwned();
    Entry* entry = table_.Live(connection);
    if (entry == nullptr || entry->ends()) return;
    entry->held = held;
    if (!held) table_.MakeReady(*entry);
  }

  void SendKeepAlive(ConnectionId connection) final {
    owner_.AssertOwned();
    Entry* entry = OpenToPost(connection);
    if (entry == nullptr || entry->forgotten) return;
    KeepAlive(*entry);
    if (CanProgress(*entry)) table_.MakeReady(*entry);
  }

  Activity ActivityOf(ConnectionId connection) const final {
    const Entry* entry = table_.Live(connection);
    if (entry == nullptr || entry->ends() || entry->forgotten) return {};
    Activity activity = Observe(*entry);
    if (entry->held || entry->starved) activity.read_all = false;
    return activity;
  }

  [[nodiscard]] std::size_t Post(std::span<const SendRequest> requests) final {
    owner_.AssertOwned();
    std::size_t taken = 0;
    while (taken < requests.size() && PushToAll(requests[taken])) ++taken;
    return taken;
  }

  [[nodiscard]] std::size_t Poll(std::span<Completion> completions) final {
    owner_.AssertOwned();
    table_.FreeForgotten();
    Notice();
    std::size_t count = 0;
    std::size_t budget_bytes = kPollBytes;
    // Each connection that is ready now gets at most one turn.
    for (std::uint64_t turns = table_.ready_count(); turns > 0; --turns) {
      if (count == completions.size() || budget_bytes == 0) break;
      Entry& entry = table_.TakeReady();
      if (entry.connection == nullptr || entry.forgotten) continue;
      count += Serve(entry, completions.subspan(count), budget_bytes);
      PHUB_CHECK(count <= completions.size(), "count={}", count);
      if constexpr (kCheckedBuild) CheckTouched(entry);
    }
    return count;
  }

  void Release(std::span<const Completion> completions) final {
    owner_.AssertOwned();
    for (const Completion& completion : completions) {
      if (completion.kind != CompletionKind::kReceived) continue;
      Entry* entry = table_.Live(completion.connection);
      if (entry == nullptr || entry->forgotten) continue;  // it may have been destroyed by now
      ReleaseMessage(*entry, completion.message);
      if (entry->starved) {
        entry->starved = false;
        table_.MakeReady(*entry);
      }
    }
  }

 protected:
  explicit TurnTransport(std::uint32_t connections_max) : table_(connections_max) {}

  // Null if the table is full or if `watch` fails. `watch` starts watching the connection under the
  // given id and returns false if the system refuses.
  template <typename ConnectionType, typename Watch>
  Entry* AdoptAs(Connection& connection, std::span<const LandingSlot> landing, Watch watch) {
    owner_.AssertOwned();
    auto* ours = dynamic_cast<ConnectionType*>(&connection);
    PHUB_CHECK(ours != nullptr, "adopted a connection of another transport");
    const Entry* vacant = table_.Vacant();
    if (vacant == nullptr || !watch(*ours, table_.IdOf(*vacant))) return nullptr;
    return &table_.Occupy(*ours, landing);
  }

  void End(Entry& entry, TransportError error, ProtocolError protocol_error) {
    PHUB_CHECK(error != TransportError::kNone && !entry.ends() && !entry.forgotten);
    entry.ending = error;
    entry.protocol_error = protocol_error;
    entry.sender().DropUnsent();
    if constexpr (kCheckedBuild) entry.CheckInvariants();  // the turn that ends it checks no more
    StopServing(entry);
  }

  bool CanProgress(const Entry& entry) const {
    if (entry.ends() || entry.sender().has_unreported()) return true;
    return entry.held ? CanSend(entry) : HasWork(entry);
  }

  ConnectionTable<Entry> table_;

 private:
  // Checks the entry that a turn has changed.
  void CheckTouched(const Entry& entry) const {
    table_.CheckInvariants(entry);
    if (entry.forgotten) return;
    entry.CheckInvariants();
  }

  // The subclass's part. Never called for a forgotten entry. For an entry that ends, only
  // FinishTurn and ReleaseMessage are called.

  // Finds out which connections became ready, without blocking.
  virtual void Notice() = 0;
  // False: posted requests are dropped, because they could never be sent.
  virtual bool CanPost(const Entry& entry) const = 0;
  virtual void Push(Entry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
                    const SendRequest& request) = 0;
  // See SendKeepAlive. Does not call End.
  virtual void KeepAlive(Entry& entry) = 0;
  // See ActivityOf; need not consider `held` and `starved`.
  virtual Activity Observe(const Entry& entry) const = 0;
  // Whether Send could make progress now.
  virtual bool CanSend(const Entry& entry) const = 0;
  // Sends at most turn_bytes and subtracts what it has sent. May call End.
  virtual void Send(Entry& entry, std::size_t& turn_bytes) = 0;
  // Returns the next complete message, or null if no message is complete or turn_bytes is used up.
  // Before it returns null, it may set entry.starved or call End.
  virtual const ReceivedMessage* Receive(Entry& entry, std::size_t& turn_bytes) = 0;
  virtual void ReleaseMessage(Entry& entry, const ReceivedMessage* message) = 0;
  // Called at the end of each turn.
  virtual void FinishTurn(Entry& /*entry*/) {}
  // Whether a turn could send or receive something.
  virtual bool HasWork(const Entry& entry) const = 0;
  // Shuts the connection down and stops watching it. Called once per entry, before its kClosed.
  virtual void StopServing(Entry& entry) = 0;

  bool PushToAll(const SendRequest& request) {
    PHUB_CHECK(request.header.payload_bytes == request.payload.size(), "header={} payload={}",
               request.header.payload_bytes, request.payload.size());
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::EncodeHeader(request.header, header);
    for (std::size_t i = 0; i < request.connections.size(); ++i) {
      Entry* entry = OpenToPost(request.connections[i]);
      if (entry == nullptr) continue;
      if (!entry->sender().full()) {
        Push(*entry, header, request);
        if (CanSend(*entry)) table_.MakeReady(*entry);
        continue;
      }
      // All or none: withdraw the request from the connections before this one.
      while (i-- > 0) {
        if (Entry* given = OpenToPost(request.connections[i])) given->sender().PopBack();
      }
      return false;
    }
    return true;
  }

  Entry* OpenToPost(ConnectionId connection) const {
    Entry* entry = table_.Live(connection);
    return entry == nullptr || entry->ends() || !CanPost(*entry) ? nullptr : entry;
  }

  // Requires room for at least one completion.
  std::size_t Serve(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes) {
    PHUB_DCHECK(!completions.empty() && budget_bytes > 0);
    if (!entry.ends()) {
      std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
      const std::size_t before = turn_bytes;
      Send(entry, turn_bytes);
      PHUB_CHECK(turn_bytes <= before, "left={} of={}", turn_bytes, before);
      budget_bytes -= before - turn_bytes;
    }
    std::size_t count = ReportSent(entry, completions);
    if (!entry.ends() && !entry.held)
      count += ReceiveSome(entry, completions.subspan(count), budget_bytes);
    FinishTurn(entry);
    if (entry.ends() && !entry.sender().has_unreported() && count < completions.size()) {
      completions[count++] = table_.Forget(entry);
      return count;
    }
    if (CanProgress(entry)) table_.MakeReady(entry);
    return count;
  }

  std::size_t ReportSent(Entry& entry, std::span<Completion> completions) {
    std::size_t count = 0;
    std::uint64_t cookie = 0;
    while (count < completions.size() && entry.sender().NextSent(cookie)) {
      Completion& completion = completions[count++];
      completion = Completion{};
      completion.kind = CompletionKind::kSent;
      completion.connection = table_.IdOf(entry);
      completion.cookie = cookie;
    }
    return count;
  }

  std::size_t ReceiveSome(Entry& entry, std::span<Completion> completions,
                          std::size_t& budget_bytes) {
    std::size_t turn_bytes = std::min(kTurnBytes, budget_bytes);
    const std::size_t before = turn_bytes;
    const std::size_t limit = std::min<std::size_t>(completions.size(), kTurnMessages);
    std::size_t count = 0;
    entry.starved = false;
    while (count < limit) {
      const ReceivedMessage* message = Receive(entry, turn_bytes);
      if (message == nullptr) break;
      Completion& completion = completions[count++];
      completion = Completion{};
      completion.kind = CompletionKind::kReceived;
      completion.connection = table_.IdOf(entry);
      completion.message = message;
    }
    PHUB_CHECK(turn_bytes <= before, "left={} of={}", turn_bytes, before);
    budget_bytes -= before - turn_bytes;
    return count;
  }

  OwnerThread owner_;
};

}  // namespace phub::transport
