// Lanes in shared memory. Messages are found by looking at the rings, without a system call; the
// kernel is asked (epoll) whose peer died and who rang while this end slept: before sleeping, after
// it, and every so often in between, so that an owner that never sleeps sees a death too.
//
// descriptor() is the epoll descriptor itself. Arm says in every lane's memory that this end
// sleeps, so that peers ring, and looks once more; Poll takes that back.
//
// A wake-up costs both ends a few microseconds, and where threads outnumber cores it stops whoever
// is working. So a peer that sleeps and said what it awaits (Transport::Await) is rung when that is
// there, when this end has nothing else to do, or after a few milliseconds.
//
// Adopt makes at most two system calls and allocates nothing. Belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "common/base/descriptor.h"
#include "common/transport/shm/shm_connection.h"
#include "common/transport/transport.h"
#include "common/transport/turn_transport.h"

struct epoll_event;

namespace phub::transport {

struct ShmEntry : ConnectionEntry<ShmConnection> {
  bool peer_gone = false;     // what it wrote is still to be read, and then it is over
  bool ring_later = false;    // the peer sleeps, and awaits more than is there
  std::uint32_t awaited = 1;  // messages, before this end has to be woken

  RingSender& sender() const { return connection->sender_; }
  void CheckInvariants() const {
    connection->sender_.CheckInvariants();
    if (!ends()) connection->receiver_.CheckInvariants();
  }
};

class ShmTransport final : public TurnTransport<ShmEntry> {
 public:
  explicit ShmTransport(std::uint32_t connections_max = kConnectionsMaxDefault);
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  // `connection` is a ShmConnection.
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
  bool CanSend(const ShmEntry& entry) const override { return entry.sender().CanFlush(); }
  void Send(ShmEntry& entry, std::size_t& turn_bytes) override;
  const ReceivedMessage* Receive(ShmEntry& entry, std::size_t& turn_bytes) override;
  void ReleaseMessage(ShmEntry& entry, const ReceivedMessage* message) override;
  void FinishTurn(ShmEntry& entry) override;
  bool HasWork(const ShmEntry& entry) const override;
  void StopServing(ShmEntry& entry) override;

  std::uint32_t look_cursor_ = 0;  // which of the served to look at next

  Descriptor epoll_;
  const std::unique_ptr<epoll_event[]> events_;
  bool sleeps_ = false;  // what peers were told
  std::uint32_t polls_until_collect_ = 0;
  TimeNs now_ = 0;  // Tick's time
  TimeNs collected_at_ = 0;
  std::uint32_t later_count_ = 0;  // entries with ring_later
  TimeNs later_since_ = 0;         // when that was 0 last
};

}  // namespace phub::transport
