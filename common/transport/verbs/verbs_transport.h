// Lanes over RDMA verbs. Completion queues are polled without a system call; the kernel is asked
// (epoll) whose peer died, and for the queues' events while this end sleeps.
//
// A transport has one completion queue per device, made with it; connections are made with one of
// them, by cold threads. descriptor() is an epoll descriptor over the queues' channels and the
// lanes' sockets. Arm asks the queues for an event, and looks once more.
//
// Fairness is that of common/transport/stream: a ring of ready connections, bounded turns. Adopt
// posts the connection's receives, and allocates nothing. Closing resets the queue pair: a call of
// the kernel, and on some devices of their firmware. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/descriptor.h"
#include "common/transport/transport.h"
#include "common/transport/verbs/verbs_connection.h"
#include "common/transport/verbs/verbs_queue.h"

struct epoll_event;

namespace phub::transport {

inline constexpr std::uint32_t kVerbsConnectionsMaxDefault = 4096;

class VerbsTransport final : public Transport {
 public:
  // At least one queue, each on a device of its own, used by no other transport.
  explicit VerbsTransport(std::vector<std::shared_ptr<VerbsQueue>> queues,
                          std::uint32_t connections_max = kVerbsConnectionsMaxDefault);
  ~VerbsTransport() override;
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;

  // `connection` is a VerbsConnection, connected, made with one of the queues.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  void SetLanding(ConnectionId connection, std::span<const LandingSlot> landing) override;
  void Close(ConnectionId connection) override;
  [[nodiscard]] std::size_t Post(std::span<const SendRequest> requests) override;
  [[nodiscard]] std::size_t Poll(std::span<Completion> completions) override;
  void Release(std::span<const Completion> completions) override;
  [[nodiscard]] bool Arm() override;
  int descriptor() const override { return epoll_.get(); }
  void Tick(TimeNs now) override;

  const VerbsCounters& counters() const { return counters_; }
  // Of every work request from here on. Null: nobody.
  void Observe(WorkRequestObserver* observer) { observer_ = observer; }

 private:
  struct Entry;

  Entry* Live(ConnectionId id) const;
  ConnectionId IdOf(const Entry& entry) const;
  bool Watch(const VerbsConnection& connection, ConnectionId id) const;
  bool Open(Entry& entry);
  bool PushToAll(const SendRequest& request);
  void Push(Entry& entry, const SendRequest& request);
  void MakeReady(Entry& entry);
  bool CanProgress(const Entry& entry) const;
  void CollectEvents();
  void PollQueues();
  void TakeCompletion(const ibv_wc& completion);
  void TakeSent(Entry& entry, const ibv_wc& completion);
  void SayKeys(Entry& entry);
  ProtocolError TakeTaken(Entry& entry, std::uint32_t immediate);
  static ProtocolError TakeControl(Entry& entry, const wire::VerbsControl& control);
  void TakeArrival(Entry& entry, const ibv_wc& completion);
  void Breach(Entry& entry, ProtocolError error);
  std::size_t Serve(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  void Send(Entry& entry, std::size_t& budget_bytes);
  void Tell(Entry& entry);
  std::size_t ReportSent(Entry& entry, std::span<Completion> completions);
  std::size_t Receive(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  void End(Entry& entry, TransportError error, ProtocolError protocol_error);
  Completion Forget(Entry& entry);
  void FreeForgotten();

  const std::vector<std::shared_ptr<VerbsQueue>> queues_;
  const std::uint32_t connections_max_;
  const std::unique_ptr<Entry[]> entries_;
  const std::unique_ptr<std::uint32_t[]> free_;  // a stack of entry indices
  std::uint32_t free_count_;
  const std::unique_ptr<std::uint32_t[]> ready_;  // a ring of entry indices
  std::uint64_t ready_head_ = 0;
  std::uint64_t ready_tail_ = 0;
  const std::unique_ptr<std::uint32_t[]> forgotten_;  // entries to be freed by the next Poll
  std::uint32_t forgotten_count_ = 0;

  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
  const std::unique_ptr<ibv_wc[]> work_completions_;
  bool queues_drained_ = true;  // by the last PollQueues
  std::uint32_t polls_until_collect_ = 0;
  TimeNs collected_at_ = 0;  // by Tick's time
  VerbsCounters counters_;
  WorkRequestObserver* observer_ = nullptr;
};

}  // namespace phub::transport
