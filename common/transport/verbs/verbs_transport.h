// Lanes over RDMA verbs. Poll polls the completion queues without a system call. epoll reports
// peers that died, and the queues' events while this end sleeps.
//
// A transport has one completion queue per device, created before it. Other threads create
// connections, each with one of these queues. descriptor() is an epoll descriptor for the queues'
// channels and the lanes' sockets. Arm requests an event from each queue, and polls once more.
//
// If a device is removed, its lanes end with kReset and a Trouble that says so.
//
// Adopt posts the connection's receives, and allocates nothing. Closing resets the queue pair,
// which calls the kernel, and on some devices the firmware. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/descriptor.h"
#include "common/base/shortage.h"
#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_queue.h"

struct epoll_event;

namespace phub::transport {

struct VerbsEntry : ConnectionEntry<VerbsConnection> {
  std::uint32_t region_hint = 0;
  std::uint32_t empty_tells = 0;    // since the last useful kTaken, or the last check
  std::uint64_t arrivals = 0;       // messages of any kind that have arrived
  std::uint64_t posted_before = 0;  // work requests posted before the last KeepAlive
  // If set, the connection ends after the messages that have arrived were received.
  TransportError failed = TransportError::kNone;
  std::uint64_t done_seen = 0;  // completed work requests at progress_at
  TimeNs progress_at = 0;
  // Recorded on arrival; ends the connection after the messages before it were received.
  ProtocolError breach = ProtocolError::kNone;

  VerbsSender& sender() const { return *connection->sender_; }
  VerbsReceiver& receiver() const { return *connection->receiver_; }
  void CheckInvariants() const {
    sender().CheckInvariants();
    if (!ends()) receiver().CheckInvariants();
  }
};

class VerbsTransport final : public TurnTransport<VerbsEntry> {
 public:
  // At least one queue. Each is on another device, and no other transport uses it.
  // kResourceExhausted: the process lacks descriptors.
  static absl::StatusOr<std::unique_ptr<VerbsTransport>> Create(
      std::vector<std::shared_ptr<VerbsQueue>> queues,
      std::uint32_t connections_max = kConnectionsMaxDefault);
  // For tests and Create(): it may fail.
  explicit VerbsTransport(std::vector<std::shared_ptr<VerbsQueue>> queues,
                          std::uint32_t connections_max = kConnectionsMaxDefault,
                          Descriptor epoll = *MakeEpoll());
  ~VerbsTransport() override;
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;

  // `connection` must be a VerbsConnection that is connected and uses one of the queues.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  [[nodiscard]] bool Arm() override;
  int descriptor() const override { return epoll_.get(); }
  void Tick(TimeNs now) override;
  bool CanPlace(ConnectionId connection, SharedAddress address, std::size_t bytes) const override;

  const VerbsCounters& counters() const { return counters_; }
  std::vector<TransportCounter> ListCounters() const override;
  // Calls `observer` for every later work request. May be null.
  void Observe(WorkRequestObserver* observer) { observer_ = observer; }

 private:
  bool Watch(const VerbsConnection& connection, ConnectionId id) const;
  bool Open(const VerbsEntry& entry);
  void CollectEvents();
  void TakeQueueEvents(VerbsQueue& queue, bool failed);
  void FailLanesOf(const VerbsQueue& queue);
  void FailForLoss(VerbsEntry& entry);
  void PollQueues();
  void TakeCompletion(const ibv_wc& completion);
  void TakeSent(VerbsEntry& entry, const ibv_wc& completion);
  void TakeArrival(VerbsEntry& entry, const ibv_wc& completion);
  void SayKeys(VerbsEntry& entry);
  ProtocolError TakeTaken(VerbsEntry& entry, std::uint32_t immediate);
  static ProtocolError TakeControl(VerbsEntry& entry, const wire::VerbsControl& control);
  void Breach(VerbsEntry& entry, ProtocolError error);
  void Fail(VerbsEntry& entry, TransportError error, std::string_view what);
  void CheckProgress(VerbsEntry& entry, TimeNs now);
  bool MaySend(const VerbsEntry& entry) const;

  void Notice() override;
  bool CanPost(const VerbsEntry& /*entry*/) const override { return true; }
  void Push(VerbsEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
            const SendRequest& request) override;
  void KeepAlive(VerbsEntry& entry) override;
  Activity Observe(const VerbsEntry& entry) const override;
  bool CanSend(const VerbsEntry& entry) const override;
  void Send(VerbsEntry& entry, std::size_t& turn_bytes) override;
  const ReceivedMessage* Receive(VerbsEntry& entry, std::size_t& turn_bytes) override;
  void ReleaseMessage(VerbsEntry& entry, const ReceivedMessage* message) override;
  void FinishTurn(VerbsEntry& entry) override;
  bool HasWork(const VerbsEntry& entry) const override;
  void StopServing(VerbsEntry& entry) override;

  const std::vector<std::shared_ptr<VerbsQueue>> queues_;
  std::vector<bool> lost_;  // [queue]: its lanes were failed
  Descriptor epoll_;
  int watch_error_ = 0;  // errno; 0: every queue is watched
  const std::unique_ptr<epoll_event[]> events_;
  const std::unique_ptr<ibv_wc[]> work_completions_;
  bool queues_drained_ = true;  // result of the last PollQueues
  std::uint32_t polls_until_collect_ = 0;
  TimeNs collected_at_ = 0;  // time of Tick
  TimeNs checked_at_ = 0;    // time of Tick
  VerbsCounters counters_;
  WorkRequestObserver* observer_ = nullptr;
};

}  // namespace phub::transport
