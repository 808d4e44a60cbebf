// One lane over one reliable queue pair. Both ends create it off the data path: Create, exchange
// offers, Connect. After that it belongs to the VerbsTransport whose queue it uses. The destructor
// destroys the queue pair and deregisters its memory; any thread may call it when no transport
// serves the connection any more.
//
// The daemon's end: a job's memory is never accessible by a remote key alone. Slots and inbox are
// accessible only through memory windows that are bound to this queue pair, so another rank cannot
// use a guessed key. The windows are bound when the connection is adopted; then the client gets the
// keys.
// The client's end: the daemon may write to the client's inbox and to memory registered for
// replies. In a lane between two daemons, the end that dials shares its domain with ranks' lanes,
// so its inbox also uses a window. The offer can contain its key, because the window is bound
// before this end's first message, and the other end sends nothing before it receives that message.
//
// The socket of the handshake, if any, stays open as long as the lane. If the peer dies, the kernel
// closes it long before the NIC's retries are used up.
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

// Sizes of one connection, fixed when it is created, and timeouts of its queue pair.
struct VerbsLimits {
  std::uint32_t send_queue = 256;          // requests posted and not yet reported or forgotten
  std::uint32_t received_lent = 64;        // messages lent at once
  std::uint32_t messages_max = 128;        // messages in flight to this end
  std::uint32_t inbox_bytes = 64 * 1024;   // a power of two
  std::uint32_t outbox_bytes = 64 * 1024;  // a multiple of 256
  // A packet that is not acknowledged is sent again after 4.096 us * 2^ack_timeout, up to
  // retry_count times: 7 times 0.27 s is about the liveness timeout.
  std::uint8_t ack_timeout = 16;  // 1 to 31; a client uses its daemon's value
  std::uint8_t retry_count = 6;   // 0 to 6; soft RoCE retries forever if it is 7
};

// The smallest ack_timeout that is at least `timeout`.
std::uint8_t AckTimeoutFor(DurationNs timeout);
// Registered memory that belongs to one connection.
constexpr std::size_t VerbsLaneBytes(const VerbsLimits& limits) {
  return limits.inbox_bytes + limits.outbox_bytes +
         std::size_t{limits.send_queue} * VerbsSender::kHeadBytes;
}

// The daemon's staging slots for a lane. Without slots, everything goes through the inbox.
struct VerbsStaging {
  std::byte* data = nullptr;  // slot_count * (wire::kSlotHeaderBytes + slot_bytes), 64-byte aligned
  std::uint32_t slot_count = 0;
  std::uint32_t slot_bytes = 0;  // a multiple of 64
  std::shared_ptr<const void> owner = {};
};

class VerbsConnection final : public Connection {
 public:
  // `queue` belongs to the transport that will adopt the connection, on the domain's device.
  // `random` draws the first packet's number. kResourceExhausted: no room in the queue, or memory
  // cannot be pinned. kFailedPrecondition: the device lacks a required feature.
  static absl::StatusOr<std::unique_ptr<VerbsConnection>> Create(
      VerbsEnd end, std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain,
      VerbsStaging staging, const VerbsLimits& limits, Random& random);
  ~VerbsConnection() override;

  wire::VerbsOffer Offer() const;
  // Connects the queue pair to the peer's. Call it once.
  absl::Status Connect(const wire::VerbsOffer& peer);
  // Sets the socket that reports the peer's death, and the peer's name, for people.
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
  // Keeps the first error; an error that follows a flush error replaces it.
  void NoteTrouble(const ibv_wc& completion);
  void NoteTrouble(std::string_view what);
  // The text that the peer sent over the socket before it closed it; may be empty.
  std::string LastWords() const;
  // Upper limit of the time until a posted request completes or the device gives up.
  DurationNs patience() const;
  void Invalidate();  // stops all transfers

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
  ibv_mw* inbox_window_ = nullptr;  // null in clients
  ibv_mw* slots_window_ = nullptr;
  std::uint32_t inbox_key_ = 0;
  std::uint32_t slots_key_ = 0;
  std::uint32_t windows_to_bind_ = 0;
  VerbsQueuePairLimits granted_;
  std::uint32_t packet_sequence_ = 0;
  std::uint8_t ack_timeout_ = 0;  // the value in use
  std::unique_ptr<VerbsSender> sender_;
  std::unique_ptr<VerbsReceiver> receiver_;
  bool peer_ready_ = false;  // the daemon's end sends nothing before the peer's first message
  Descriptor socket_;
  std::string peer_;
  std::string trouble_;
  bool trouble_is_flush_ = false;
};

}  // namespace phub::transport
