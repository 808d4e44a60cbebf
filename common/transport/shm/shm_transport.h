// Lanes in shared memory. Poll finds messages by reading the rings, without a system call. epoll
// reports peers that died, and peers that rang while this end slept. It is called before and after
// sleeping, and from time to time in between, so that an owner that never sleeps also notices that
// a peer has died.
//
// descriptor() is the epoll descriptor. Arm sets the sleep flag in every lane's memory, so that
// peers ring, and then checks the rings once more; Poll clears the flag.
//
// A wake-up costs both ends a few microseconds, and if there are more threads than cores, it
// preempts a working thread. So a sleeping peer that has announced how many messages it awaits
// (Transport::Await) is rung when they are there, when this end is idle, or after a few
// milliseconds.
//
// Adopt makes at most two system calls and allocates nothing. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/descriptor.h"
#include "common/base/shortage.h"
#include "common/transport/shm/shm_connection.h"
#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"

struct epoll_event;

namespace phub::transport {

struct ShmEntry : ConnectionEntry<ShmConnection> {
  bool peer_gone = false;     // the connection ends after everything in the ring was read
  bool ring_later = false;    // the peer sleeps, and awaits more messages than there are
  std::uint32_t awaited = 1;  // messages that this end awaits before it is rung

  RingSender& sender() const { return connection->sender_; }
  void CheckInvariants() const {
    connection->sender_.CheckInvariants();
    if (!ends()) connection->receiver_.CheckInvariants();
  }
};

class ShmTransport final : public TurnTransport<ShmEntry> {
 public:
  // `epoll`: from MakeEpoll(); the default is for tests, because it may fail.
  explicit ShmTransport(std::uint32_t connections_max = kConnectionsMaxDefault,
                        Descriptor epoll = *MakeEpoll());
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  // `connection` must be a ShmConnection.
  [[nodiscard]] ConnectionId Adopt(Connection& connection,
                                   std::span<const LandingSlot> landing) override;
  [[nodiscard]] bool Arm() override;
  int descriptor() const override { return epoll_.get(); }
  void Tick(TimeNs now) override;
  void Await(ConnectionId connection, std::uint32_t messages) override;
  void OnIdle() override;

  SharedAddress AddressOf(ConnectionId connection, const std::byte* data,
                          std::size_t bytes) const override;
  std::byte* Resolve(ConnectionId connection, SharedAddress address,
                     std::size_t bytes) const override;
  std::byte* PeerSlot(ConnectionId connection, SlotIndex slot) const override;

 private:
  bool Watch(const ShmConnection& connection, ConnectionId id) const;
  void Unwatch(const ShmConnection& connection) const;
  void CollectEvents();
  void LookAround();
  void SetSleeps(bool sleeps);
  void RingLater(ShmEntry& entry, bool later);

  void Notice() override;
  bool CanPost(const ShmEntry& /*entry*/) const override { return true; }
  void Push(ShmEntry& entry, std::span<const std::byte, wire::kHeaderBytes> header,
            const SendRequest& request) override;
  void KeepAlive(ShmEntry& entry) override { entry.sender().KeepAlive(); }
  Activity Observe(const ShmEntry& entry) const override;
  bool CanSend(const ShmEntry& entry) const override { return entry.sender().CanFlush(); }
  void Send(ShmEntry& entry, std::size_t& turn_bytes) override;
  const ReceivedMessage* Receive(ShmEntry& entry, std::size_t& turn_bytes) override;
  void ReleaseMessage(ShmEntry& entry, const ReceivedMessage* message) override;
  void FinishTurn(ShmEntry& entry) override;
  bool HasWork(const ShmEntry& entry) const override;
  void StopServing(ShmEntry& entry) override;

  std::uint32_t look_cursor_ = 0;  // the next served entry to check

  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
  bool sleeps_ = false;  // the value of the sleep flag that peers see
  std::uint32_t polls_until_collect_ = 0;
  TimeNs now_ = 0;  // time of the last Tick
  TimeNs collected_at_ = 0;
  std::uint32_t later_count_ = 0;  // entries with ring_later
  TimeNs later_since_ = 0;         // when that was last 0
};

}  // namespace phub::transport
