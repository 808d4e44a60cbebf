// Lanes in shared memory. Messages are found by looking at the rings, without a system call; the
// kernel is asked (epoll) whose peer died and who rang while this end slept: before sleeping, after
// it, and every so often in between, so that an owner that never sleeps sees a death too.
//
// descriptor() is the epoll descriptor itself. Arm says in every lane's memory that this end
// sleeps, so that peers ring, and looks once more; Poll takes that back.
//
// Fairness is that of common/transport/stream: a ring of ready connections, bounded turns.
// Adopt makes at most two system calls and allocates nothing. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/descriptor.h"
#include "common/transport/shm/shm_connection.h"
#include "common/transport/transport.h"

struct epoll_event;

namespace phub::transport {

inline constexpr std::uint32_t kShmConnectionsMaxDefault = 4096;

class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::uint32_t connections_max = kShmConnectionsMaxDefault);
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  // `connection` is a ShmConnection.
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

  SharedAddress AddressOf(ConnectionId connection, const std::byte* data,
                          std::size_t bytes) const override;
  std::byte* Resolve(ConnectionId connection, SharedAddress address,
                     std::size_t bytes) const override;
  std::byte* PeerSlot(ConnectionId connection, SlotIndex slot) const override;

 private:
  struct Entry;

  Entry* Live(ConnectionId id) const;
  ConnectionId IdOf(const Entry& entry) const;
  bool Watch(const ShmConnection& connection, ConnectionId id) const;
  void Unwatch(const ShmConnection& connection) const;
  bool PushToAll(const SendRequest& request);
  void MakeReady(Entry& entry);
  bool CanProgress(const Entry& entry) const;
  void CollectEvents();
  void LookAround();
  void SetSleeps(bool sleeps);
  std::size_t Serve(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  void Send(Entry& entry, std::size_t& budget_bytes);
  std::size_t ReportSent(Entry& entry, std::span<Completion> completions);
  std::size_t Receive(Entry& entry, std::span<Completion> completions, std::size_t& budget_bytes);
  void End(Entry& entry, TransportError error, ProtocolError protocol_error);
  Completion Forget(Entry& entry);
  void FreeForgotten();

  const std::uint32_t connections_max_;
  const std::unique_ptr<Entry[]> entries_;
  const std::unique_ptr<std::uint32_t[]> free_;  // a stack of entry indices
  std::uint32_t free_count_;
  const std::unique_ptr<std::uint32_t[]> ready_;  // a ring of entry indices
  std::uint64_t ready_head_ = 0;
  std::uint64_t ready_tail_ = 0;
  const std::unique_ptr<std::uint32_t[]> served_;  // entries with a connection, in no order
  std::uint32_t served_count_ = 0;
  const std::unique_ptr<std::uint32_t[]> forgotten_;  // entries to be freed by the next Poll
  std::uint32_t forgotten_count_ = 0;
  std::uint32_t look_cursor_ = 0;  // where in served_ to look next

  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
  bool sleeps_ = false;  // what peers were told
  std::uint32_t polls_until_collect_ = 0;
  TimeNs collected_at_ = 0;  // by Tick's time
};

}  // namespace phub::transport
