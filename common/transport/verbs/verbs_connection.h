// One lane over one reliable queue pair. Made by a cold thread on both ends: Create, exchange
// offers, Connect; after that it belongs to the VerbsTransport whose queue it was made with.
// Destroying it destroys the queue pair and deregisters its memory; any thread, once nobody serves
// it.
//
// The daemon's end. Nothing of a job is open to remote keys as such: slots and inbox are opened by
// memory windows that are bound to this queue pair, so that a key that another rank guesses is good
// for nothing. They are bound when the connection is adopted, and the client waits for the keys.
// The client's end opens its own inbox, and what it has registered for replies, to its daemon.
// Of a lane between two daemons, the end that dials shares its domain with ranks' lanes: its inbox
// is opened by a window, too. That is bound before the first word of this end, and the other says
// nothing before it has heard that, so its key can go with the offer.
//
// A connected socket, if there is one (that of the handshake), stays open for the lane's life: when
// a peer dies, however it dies, the kernel says so long before the NIC's retries are used up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/mapped_memory.h"
#include "common/base/random.h"
#include "common/transport/transport.h"
#include "common/transport/verbs/verbs_domain.h"
#include "common/transport/verbs/verbs_queue.h"
#include "common/transport/verbs/verbs_receiver.h"
#include "common/transport/verbs/verbs_sender.h"
#include "common/wire/verbs_lane.h"

struct ibv_mw;
struct ibv_qp;
struct ibv_wc;

namespace phub::transport {

// What one connection holds, fixed when it is made, and how patient its queue pair is.
struct VerbsLimits {
  std::uint32_t send_queue = 256;          // requests posted and not yet reported or forgotten
  std::uint32_t received_lent = 64;        // messages lent at once
  std::uint32_t messages_max = 128;        // that may be on their way to this end
  std::uint32_t inbox_bytes = 64 * 1024;   // a power of two
  std::uint32_t outbox_bytes = 64 * 1024;  // a multiple of 256
  // 4.096 us * 2^ack_timeout until a packet that is not acknowledged is sent again, retry_count
  // times: 7 times 0.27 s is about the liveness timeout.
  std::uint8_t ack_timeout = 16;  // 1 to 31; a client takes its daemon's
  std::uint8_t retry_count = 6;   // 0 to 6; soft RoCE takes 7 for "without end"
};

// The least ack_timeout that is at least so long.
std::uint8_t AckTimeoutFor(DurationNs timeout);
// Registered memory that a connection has for itself.
constexpr std::size_t VerbsLaneBytes(const VerbsLimits& limits) {
  return limits.inbox_bytes + limits.outbox_bytes +
         std::size_t{limits.send_queue} * VerbsSender::kHeadBytes;
}

// The daemon's staging slots for a lane; without, everything goes through the inbox.
struct VerbsStaging {
  std::byte* data = nullptr;  // slot_count * (wire::kSlotHeaderBytes + slot_bytes), 64-byte aligned
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;  // a multiple of 64
  std::shared_ptr<const void> owner = {};
};

class VerbsConnection final : public Connection {
 public:
  // `queue` belongs to the transport that will adopt the connection, on the domain's device.
  // `random` draws the first packet's number. kResourceExhausted: no room in the queue, no memory
  // to pin; kFailedPrecondition: the device cannot do what a daemon needs.
  static absl::StatusOr<std::unique_ptr<VerbsConnection>> Create(
      VerbsEnd end, std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain,
      VerbsStaging staging, const VerbsLimits& limits, Random& random);
  ~VerbsConnection() override;

  wire::VerbsOffer Offer() const;
  // Connects the queue pair to the peer's. Once.
  absl::Status Connect(const wire::VerbsOffer& peer);
  // The socket whose end is the peer's end, and the peer's name, for people.
  void SetSocket(Descriptor socket, std::string peer);

  VerbsEnd end() const { return end_; }
  const VerbsDevice& device() const { return domain_->device(); }
  std::string Trouble() const override { return trouble_; }
  std::uint32_t slot_header_bytes() const override { return wire::kSlotHeaderBytes; }

 private:
  friend class VerbsTransport;
  friend struct VerbsEntry;

  VerbsConnection(VerbsEnd end, std::shared_ptr<VerbsQueue> queue,
                  std::shared_ptr<VerbsDomain> domain, VerbsStaging staging,
                  const VerbsLimits& limits);
  absl::Status TakeMemory();
  absl::Status TakeQueuePair();
  absl::Status MakeWindow(ibv_mw*& window, std::uint32_t& key);
  void MakeHalves();

  // For the transport.
  bool PostReceives(std::uint32_t count, std::uint64_t work_request_id);
  bool BindWindows(std::uint64_t work_request_id);
  std::uint32_t receives_max() const;
  bool NoteBound();  // true when that was the last window
  // The first word about what broke it stands, unless it was only that of a flush.
  void NoteTrouble(const ibv_wc& completion);
  void NoteTrouble(std::string_view what);
  // What the peer has left on the socket before it closed it; empty if nothing.
  std::string LastWords() const;
  // How long it may take until what was posted is done, or the device has given up.
  DurationNs patience() const;
  void Invalidate();  // no byte comes or goes from here on

  const VerbsEnd end_;
  const std::shared_ptr<VerbsQueue> queue_;
  const std::shared_ptr<VerbsDomain> domain_;
  const VerbsStaging staging_;
  const VerbsLimits limits_;
  std::uint32_t reserved_ = 0;  // entries of queue_
  MappedMemory memory_;         // inbox, heads, outbox
  RegisteredMemory inbox_;
  RegisteredMemory send_memory_;
  RegisteredMemory slots_;
  ibv_qp* queue_pair_ = nullptr;
  ibv_mw* inbox_window_ = nullptr;  // of daemons
  ibv_mw* slots_window_ = nullptr;
  std::uint32_t inbox_key_ = 0;
  std::uint32_t slots_key_ = 0;
  std::uint32_t windows_to_bind_ = 0;
  VerbsQueuePairLimits granted_;
  std::uint32_t packet_sequence_ = 0;
  std::uint8_t ack_timeout_ = 0;  // in use
  std::unique_ptr<VerbsSender> sender_;
  std::unique_ptr<VerbsReceiver> receiver_;
  bool peer_ready_ = false;  // the daemon's end says nothing before it has heard its client
  Descriptor socket_;
  std::string peer_;
  std::string trouble_;
  bool trouble_is_flush_ = false;
};

}  // namespace phub::transport
