// Lanes over RDMA verbs. Completion queues are polled without a system call; the kernel is asked
// (epoll) whose peer died, and for the queues' events while this end sleeps.
//
// A transport has one completion queue per device, made with it; connections are made with one of
// them, by cold threads. descriptor() is an epoll descriptor over the queues' channels and the
// lanes' sockets. Arm asks the queues for an event, and looks once more.
//
// A device that is taken away ends its lanes, with kReset and a Trouble that says so.
//
// Adopt posts the connection's receives, and allocates nothing. Closing resets the queue pair: a
// call of the kernel, and on some devices of their firmware. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/descriptor.h"
#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_queue.h"

struct epoll_event;

namespace phub::transport {

struct VerbsEntry : ConnectionEntry<VerbsConnection> {
  std::uint32_t region_hint = 0;
  std::uint32_t empty_tells = 0;
  // Not kNone: nothing more comes. What has arrived is still to be taken, and then it is over.
  TransportError failed = TransportError::kNone;
  std::uint64_t done_seen = 0;  // of its work requests, at progress_at
  TimeNs progress_at = 0;
  ProtocolError breach = ProtocolError::kNone;  // noted on arrival; ends it in its place

  VerbsSender& sender() const { return *connection->sender_; }
  VerbsReceiver& receiver() const { return *connection->receiver_; }
  void CheckInvariants() const {
    sender().CheckInvariants();
    if (!ends()) receiver().CheckInvariants();
  }
};

class VerbsTransport final : public TurnTransport<VerbsEntry> {
 public:
  // At least one queue, each on a device of its own, used by no other transport.
  explicit VerbsTransport(std::vector<std::shared_ptr<VerbsQueue>> queues,
                          std::uint32_t connections_max = kConnectionsMaxDefault);
  ~VerbsTransport() override;
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;

  // `connection` is a VerbsConnection, connected, made with one of the queues.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  [[nodiscard]] bool Arm() override;
  int descriptor() const override { return epoll_.get(); }
  void Tick(TimeNs now) override;
  bool CanPlace(ConnectionId connection, SharedAddress address, std::size_t bytes) const override;

  const VerbsCounters& counters() const { return counters_; }
  std::vector<TransportCounter> ListCounters() const override;
  // Of every work request from here on. Null: nobody.
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

  void Notice() override;
  bool CanPost(const VerbsEntry& /*entry*/) const override { return true; }
  void Push(VerbsEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
            const SendRequest& request) override;
  bool CanSend(const VerbsEntry& entry) const override;
  void Send(VerbsEntry& entry, std::size_t& turn_bytes) override;
  const ReceivedMessage* Receive(VerbsEntry& entry, std::size_t& turn_bytes) override;
  void ReleaseMessage(VerbsEntry& entry, const ReceivedMessage* message) override;
  void FinishTurn(VerbsEntry& entry) override;
  bool HasWork(const VerbsEntry& entry) const override;
  void StopServing(VerbsEntry& entry) override;

  const std::vector<std::shared_ptr<VerbsQueue>> queues_;
  std::vector<bool> lost_;  // [queue]: its lanes were told
  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
  const std::unique_ptr<ibv_wc[]> work_completions_;
  bool queues_drained_ = true;  // by the last PollQueues
  std::uint32_t polls_until_collect_ = 0;
  TimeNs collected_at_ = 0;  // by Tick's time
  TimeNs checked_at_ = 0;    // the same
  VerbsCounters counters_;
  WorkRequestObserver* observer_ = nullptr;
};

}  // namespace phub::transport
