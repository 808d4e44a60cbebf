// VerbsTransport: handles completions of the queues, closed sockets, and going to sleep.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/transport/verbs/immediate.h"
#include "common/transport/verbs/poll_limits.h"
#include "common/transport/verbs/verbs_transport.h"
#include "common/transport/verbs/work_request_id.h"

namespace phub::transport {
namespace {

// A peer that sends more kTaken messages without new values between two checks only keeps this end
// awake, and is disconnected. Some of them are keep-alives.
constexpr std::uint32_t kEmptyTellsMax = 256;
constexpr std::string_view kDeviceLost =
    "the device is lost: it was unplugged, or its driver was unloaded or reset; see the kernel's "
    "log (dmesg)";

bool PeerHasClosed(int socket) {
  if (socket < 0) return false;
  char byte = 0;
  return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

}  // namespace

// Collects closed sockets before it polls the queues, so that messages that arrived before a peer
// died are not lost.
void VerbsTransport::Notice() {
  if (polls_until_collect_ == 0) CollectEvents();
  --polls_until_collect_;
  PollQueues();
}

void VerbsTransport::CollectEvents() {
  polls_until_collect_ = kPollsPerCollect;
  const int count = epoll_wait(epoll_.get(), events_.get(), kEventsPerCollect, 0);
  PHUB_CHECK(count >= 0 || errno == EINTR, "epoll_wait errno={}", errno);
  for (int i = 0; i < count; ++i) {
    const ConnectionId id = UnpackId(events_[i].data.u64);
    if (id.generation == kQueueGeneration) {
      TakeQueueEvents(*queues_[id.index], (events_[i].events & (EPOLLERR | EPOLLHUP)) != 0);
      continue;
    }
    VerbsEntry* entry = table_.Live(id);
    if (entry == nullptr || entry->ends()) continue;
    const std::string words = entry->connection->LastWords();
    Fail(*entry, TransportError::kPeerClosed,
         words.empty() ? "the peer's process ended, or closed the lane"
                       : "the peer reports: " + words);
  }
  // If the array was full, there may be more events: the next Poll collects them.
  if (count == kEventsPerCollect) polls_until_collect_ = 1;
}

// Stops watching a descriptor that has failed, because it would always be ready.
void VerbsTransport::TakeQueueEvents(VerbsQueue& queue, bool failed) {
  if (!failed) return queue.TakeEvents();
  queue.Break("poll", EIO);
  const int result = epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, queue.descriptor(), /*event=*/nullptr);
  PHUB_CHECK(result == 0, "errno={}", errno);
}

void VerbsTransport::FailLanesOf(const VerbsQueue& queue) {
  for (std::uint32_t i = 0; i < table_.served_count(); ++i) {
    VerbsEntry& entry = table_.served(i);
    if (!entry.ends() && entry.connection->queue_.get() == &queue) {
      FailForLoss(entry);
    }
  }
}

void VerbsTransport::FailForLoss(VerbsEntry& entry) {
  Fail(entry, TransportError::kReset, kDeviceLost);
}

void VerbsTransport::PollQueues() {
  queues_drained_ = true;
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    const std::shared_ptr<VerbsQueue>& queue = queues_[q];
    std::size_t count = kCompletionsAtOnce;
    for (std::size_t turn = 0; turn < kQueueTurns && count == kCompletionsAtOnce; ++turn) {
      count = queue->Poll({work_completions_.get(), kCompletionsAtOnce});
      for (std::size_t i = 0; i < count; ++i) TakeCompletion(work_completions_[i]);
    }
    if (count == kCompletionsAtOnce) queues_drained_ = false;
    if (queue->broken() && !lost_[q]) {
      lost_[q] = true;  // Adopt fails later lanes
      FailLanesOf(*queue);
    }
  }
}

// If the status is not success, only status, wr_id and vendor_err of a completion are valid.
void VerbsTransport::TakeCompletion(const ibv_wc& completion) {
  const ibv_wc_status status = completion.status;
  VerbsEntry* entry = table_.At(IndexOf(completion.wr_id));
  if (entry == nullptr || !IsOf(completion.wr_id, table_.IdOf(*entry)) || entry->ends()) return;
  if (status != IBV_WC_SUCCESS) {
    entry->connection->NoteTrouble(completion);
    Fail(*entry,
         PeerHasClosed(entry->connection->socket_.get()) ? TransportError::kPeerClosed
                                                         : TransportError::kReset,
         ibv_wc_status_str(status));
  } else if (HalfOf(completion.wr_id) == Half::kSend) {
    TakeSent(*entry, completion);
  } else {
    TakeArrival(*entry, completion);
  }
}

void VerbsTransport::TakeSent(VerbsEntry& entry, const ibv_wc& completion) {
  VerbsConnection& connection = *entry.connection;
  if (completion.opcode == IBV_WC_BIND_MW) {
    if (connection.NoteBound() && connection.peer_ready_) SayKeys(entry);
    return;
  }
  entry.sender().OnCompletion();
  // If a caller found the queue full, the entry becomes ready, so that the owner does not block but
  // posts again.
  if (entry.sender().TakeRefused() || CanProgress(entry)) table_.MakeReady(entry);
}

void VerbsTransport::SayKeys(VerbsEntry& entry) {
  VerbsConnection& connection = *entry.connection;
  if (connection.end() != VerbsEnd::kDaemon || connection.windows_to_bind_ > 0) return;
  connection.sender_->Announce({.kind = wire::VerbsControlKind::kKeys,
                                .inbox_key = connection.inbox_key_,
                                .slots_key = connection.slots_key_});
  table_.MakeReady(entry);
}

void VerbsTransport::TakeArrival(VerbsEntry& entry, const ibv_wc& completion) {
  VerbsConnection& connection = *entry.connection;
  ++entry.arrivals;
  if (entry.breach != ProtocolError::kNone) return;
  const bool expected = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM &&
                        (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  const std::uint32_t immediate = ntohl(completion.imm_data);
  if (!connection.peer_ready_) {
    connection.peer_ready_ = true;
    SayKeys(entry);
  }
  ProtocolError error = ProtocolError::kNone;
  if (!expected) {
    error = ProtocolError::kKind;
  } else if (KindOf(immediate) == ImmediateKind::kTaken) {
    error = TakeTaken(entry, immediate);
  } else {
    wire::VerbsControl control;
    bool has_control = false;
    error = connection.receiver_->Arrived(immediate, completion.byte_len, control, has_control);
    if (error == ProtocolError::kNone && has_control) error = TakeControl(entry, control);
  }
  if (error != ProtocolError::kNone) entry.breach = error;
  if (CanProgress(entry)) table_.MakeReady(entry);
}

// Handled at once, even if messages wait. Otherwise two ends that both wait for the other to
// release messages could deadlock.
ProtocolError VerbsTransport::TakeTaken(VerbsEntry& entry, std::uint32_t immediate) {
  VerbsConnection& connection = *entry.connection;
  if (!connection.PostReceives(1, WorkRequestId(table_.IdOf(entry), Half::kReceive))) {
    Fail(entry, TransportError::kReset, "cannot post receives");
  }
  const TakenImmediate taken = UnpackTaken(immediate);
  switch (connection.sender_->OnTaken(taken.messages, taken.units)) {
    case VerbsSender::Taken::kBroken: return ProtocolError::kRing;
    case VerbsSender::Taken::kMore: entry.empty_tells = 0; break;
    case VerbsSender::Taken::kNothingNew: ++entry.empty_tells; break;
  }
  return entry.empty_tells > kEmptyTellsMax ? ProtocolError::kDoorbell : ProtocolError::kNone;
}

ProtocolError VerbsTransport::TakeControl(VerbsEntry& entry, const wire::VerbsControl& control) {
  VerbsConnection& connection = *entry.connection;
  switch (control.kind) {
    case wire::VerbsControlKind::kKeys:
      if (connection.end() == VerbsEnd::kDaemon || connection.sender_->has_keys()) break;
      connection.sender_->SetKeys(control.inbox_key, control.slots_key);
      return ProtocolError::kNone;
    case wire::VerbsControlKind::kRegion:
      if (connection.sender_->AddPeerRegion(control)) return ProtocolError::kNone;
      break;
  }
  return ProtocolError::kRing;
}

bool VerbsTransport::Arm() {
  CollectEvents();
  PollQueues();
  if (table_.ready_count() > 0) return false;
  for (const std::shared_ptr<VerbsQueue>& queue : queues_) queue->RequestEvent();
  PollQueues();  // completions before the request cause no event
  return table_.ready_count() == 0 && queues_drained_;
}

void VerbsTransport::Tick(TimeNs now) {
  if (now - collected_at_ < kCollectInterval) return;
  collected_at_ = now;
  polls_until_collect_ = 0;
  if (now - checked_at_ < kCheckInterval) return;
  checked_at_ = now;
  for (std::uint32_t i = 0; i < table_.served_count(); ++i) CheckProgress(table_.served(i), now);
}

// Fails a lane whose device has completed nothing for longer than all its retries can take: the
// peer is alive but posts no receives, or the device is broken without reporting it.
void VerbsTransport::CheckProgress(VerbsEntry& entry, TimeNs now) {
  if (entry.ends() || entry.failed != TransportError::kNone) return;
  entry.empty_tells = 0;
  const VerbsConnection& connection = *entry.connection;
  if (connection.queue_->lost()) return FailForLoss(entry);
  const std::uint64_t done = entry.sender().done();
  if (!entry.sender().has_posted() || done != entry.done_seen || entry.progress_at == 0) {
    entry.done_seen = done;
    entry.progress_at = now;
  } else if (now - entry.progress_at > connection.patience()) {
    Fail(entry, TransportError::kReset, "the peer receives nothing any more (receiver not ready)");
  }
}

// Marks the lane as failed. It ends after the messages that have arrived were received.
void VerbsTransport::Fail(VerbsEntry& entry, TransportError error, std::string_view what) {
  if (entry.failed != TransportError::kNone) return;
  entry.connection->NoteTrouble(what);
  entry.failed = error;
  if (error == TransportError::kReset) counters_.lanes_failed.Add();
  table_.MakeReady(entry);
}

}  // namespace phub::transport
