#include "common/transport/verbs/verbs_connection.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/shortage.h"

namespace phub::transport {
namespace {

// Receives for kTaken messages, in addition to those for messages_max. A peer sends kTaken once per
// quarter of its window of messages and once per quarter of its inbox, so at most eight are in
// flight, and the client's first one.
constexpr std::uint32_t kTakenReceives = 16;
// Requested room for inline data: a header and a record. Some devices have at most 220 bytes.
constexpr std::uint32_t kInlineBytes = 192;
constexpr std::uint8_t kReceiverNotReadyRetries = 7;  // 7: forever
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kReceiverNotReadyTimer = 6;  // 0.08 ms

absl::Status Failed(const VerbsDevice& device, const char* what, int error) {
  return absl::ResourceExhaustedError(
      fmt::format("RDMA device {}: {}: {}", device.name(), what,
                  error == 0 ? "the driver gives no reason" : ErrnoText(error)));
}

}  // namespace

std::uint8_t AckTimeoutFor(DurationNs timeout) {
  constexpr DurationNs kUnit = 4096;
  constexpr std::uint8_t kMax = 31;
  std::uint8_t exponent = 1;
  while (exponent < kMax && (kUnit << exponent) < timeout) ++exponent;
  return exponent;
}

absl::StatusOr<std::unique_ptr<VerbsConnection>> VerbsConnection::Create(
    VerbsEnd end, std::shared_ptr<VerbsQueue> queue, std::shared_ptr<VerbsDomain> domain,
    VerbsStaging staging, const VerbsLimits& limits, Random& random) {
  PHUB_CHECK(queue->device()->context() == domain->device().context(),
             "queue and domain are on different devices");
  PHUB_CHECK(limits.inbox_bytes >= wire::kInboxBytesMin && limits.outbox_bytes % 256 == 0 &&
             limits.messages_max >= wire::kVerbsMessagesMin &&
             limits.messages_max <= wire::kVerbsMessagesMax);
  if (end != VerbsEnd::kClient && !domain->device().limits().windows) {
    return absl::FailedPreconditionError(
        fmt::format("RDMA device {} has no memory windows of type 2, which phubd needs to isolate "
                    "the ranks of a job; use transport=tcp",
                    domain->device().name()));
  }
  std::unique_ptr<VerbsConnection> connection(
      new VerbsConnection(end, std::move(queue), std::move(domain), std::move(staging), limits));
  connection->packet_sequence_ =
      static_cast<std::uint32_t>(random.Next()) & wire::kPacketSequenceMax;
  absl::Status status = connection->TakeMemory();
  if (status.ok()) status = connection->TakeQueuePair();
  if (status.ok() && end != VerbsEnd::kClient) {
    status = connection->MakeWindow(connection->inbox_window_, connection->inbox_key_);
    if (status.ok() && connection->staging_.slot_count > 0) {
      status = connection->MakeWindow(connection->slots_window_, connection->slots_key_);
    }
  }
  if (!status.ok()) return status;
  connection->MakeHalves();
  if (!connection->receiver_->has_memory()) {
    return MemoryShortage("map the memory of a verbs lane", ENOMEM);
  }
  return connection;
}

VerbsConnection::VerbsConnection(VerbsEnd end, std::shared_ptr<VerbsQueue> queue,
                                 std::shared_ptr<VerbsDomain> domain, VerbsStaging staging,
                                 const VerbsLimits& limits)
    : end_(end),
      queue_(std::move(queue)),
      domain_(std::move(domain)),
      staging_(std::move(staging)),
      limits_(limits) {}

// Destroys the windows before the queue pair that they are bound to, and the memory after both.
VerbsConnection::~VerbsConnection() {
  ibv_context* const context = domain_->device().context();
  for (ibv_mw* window : {inbox_window_, slots_window_}) {
    if (window != nullptr) CheckGivenBack(context, "ibv_dealloc_mw", ibv_dealloc_mw(window));
  }
  if (queue_pair_ != nullptr) {
    CheckGivenBack(context, "ibv_destroy_qp", ibv_destroy_qp(queue_pair_));
  }
  queue_->Return(reserved_);
}

absl::Status VerbsConnection::TakeMemory() {
  const std::size_t heads_bytes = std::size_t{limits_.send_queue} * VerbsSender::kHeadBytes;
  const std::size_t bytes = limits_.inbox_bytes + heads_bytes + limits_.outbox_bytes;
  memory_ = MappedMemory::Allocate(bytes, MappedMemory::Backing::kPrefault);
  if (!memory_) {
    return MemoryShortage(fmt::format("allocate {} bytes for a verbs lane", bytes), ENOMEM);
  }
  const bool daemon = end_ != VerbsEnd::kClient;
  using Use = RegisteredMemory::Use;
  auto inbox =
      RegisteredMemory::Create(domain_->get(), domain_->device(), memory_.data(),
                               limits_.inbox_bytes, daemon ? Use::kWindows : Use::kReceive);
  if (!inbox.ok()) return inbox.status();
  inbox_ = *std::move(inbox);
  auto send = RegisteredMemory::Create(domain_->get(), domain_->device(),
                                       memory_.data() + limits_.inbox_bytes,
                                       heads_bytes + limits_.outbox_bytes, Use::kSend);
  if (!send.ok()) return send.status();
  send_memory_ = *std::move(send);
  if (staging_.slot_count == 0) return absl::OkStatus();
  PHUB_CHECK(end_ == VerbsEnd::kDaemon && staging_.slot_bytes % wire::kSlotHeaderBytes == 0);
  auto slots = RegisteredMemory::Create(
      domain_->get(), domain_->device(), staging_.data,
      std::size_t{staging_.slot_count} * (wire::kSlotHeaderBytes + staging_.slot_bytes),
      Use::kWindows);
  if (!slots.ok()) return slots.status();
  slots_ = *std::move(slots);
  return absl::OkStatus();
}

std::uint32_t VerbsConnection::receives_max() const {
  return limits_.messages_max + kTakenReceives;
}

absl::Status VerbsConnection::TakeQueuePair() {
  const VerbsDevice& device = domain_->device();
  const std::uint32_t requests =
      std::min(limits_.send_queue + VerbsSender::kTakenReserve + 32, device.limits().requests_max);
  if (receives_max() > device.limits().requests_max || device.limits().parts_max < 2) {
    return absl::FailedPreconditionError(fmt::format(
        "RDMA device {} supports queues of {} requests with {} parts, but a lane needs {} requests "
        "with 2 parts",
        device.name(), device.limits().requests_max, device.limits().parts_max, receives_max()));
  }
  if (!queue_->Reserve(requests + receives_max())) {
    return absl::ResourceExhaustedError(fmt::format(
        "the completion queue of RDMA device {} has no room for another lane", device.name()));
  }
  reserved_ = requests + receives_max();
  ibv_qp_init_attr attributes{};
  attributes.send_cq = queue_->get();
  attributes.recv_cq = queue_->get();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = requests;
  attributes.cap.max_recv_wr = receives_max();
  attributes.cap.max_send_sge = RequestBatch::kPartsMax;
  attributes.cap.max_recv_sge = 1;
  attributes.cap.max_inline_data = kInlineBytes;
  queue_pair_ = ibv_create_qp(domain_->get(), &attributes);
  if (queue_pair_ == nullptr) {  // the device may not support inline data
    attributes.cap.max_inline_data = 0;
    queue_pair_ = ibv_create_qp(domain_->get(), &attributes);
  }
  if (queue_pair_ == nullptr) return Failed(device, "cannot create a queue pair", errno);
  // Two requests are reserved for binding the windows.
  granted_ = {.requests = requests - 2,
              .inline_bytes = attributes.cap.max_inline_data,
              .message_bytes = device.limits().message_bytes_max};
  return absl::OkStatus();
}

absl::Status VerbsConnection::MakeWindow(ibv_mw*& window, std::uint32_t& key) {
  window = ibv_alloc_mw(domain_->get(), IBV_MW_TYPE_2);
  if (window == nullptr) return Failed(domain_->device(), "cannot create a memory window", errno);
  key = ibv_inc_rkey(window->rkey);  // the key that BindWindows will bind it with
  ++windows_to_bind_;
  return absl::OkStatus();
}

void VerbsConnection::MakeHalves() {
  std::byte* const heads = memory_.data() + limits_.inbox_bytes;
  const VerbsSendMemory send{
      .heads = heads,
      .outbox = heads + std::size_t{limits_.send_queue} * VerbsSender::kHeadBytes,
      .outbox_bytes = limits_.outbox_bytes,
      .local_key = send_memory_.local_key()};
  sender_ = std::make_unique<VerbsSender>(end_, limits_.send_queue, send, domain_, granted_);
  const VerbsReceiveMemory receive{.inbox = memory_.data(),
                                   .inbox_bytes = limits_.inbox_bytes,
                                   .slots = staging_.data,
                                   .slot_count = staging_.slot_count,
                                   .slot_bytes = staging_.slot_bytes};
  receiver_ =
      std::make_unique<VerbsReceiver>(end_, receive, limits_.messages_max, limits_.received_lent);
}

// ---- Connecting --------------------------------------------------------------------------------

wire::VerbsOffer VerbsConnection::Offer() const {
  const VerbsDevice& device = domain_->device();
  wire::VerbsOffer offer;
  offer.mtu = device.mtu();
  offer.ack_timeout = limits_.ack_timeout;
  offer.lid = device.lid();
  offer.queue_pair = queue_pair_->qp_num;
  offer.packet_sequence = packet_sequence_;
  std::transform(device.gid().gid.begin(), device.gid().gid.end(), offer.gid.begin(),
                 [](std::uint8_t byte) { return static_cast<std::byte>(byte); });
  offer.inbox_address = reinterpret_cast<std::uintptr_t>(memory_.data());
  offer.inbox_bytes = limits_.inbox_bytes;
  switch (end_) {
    case VerbsEnd::kDaemon: break;  // sent on the lane
    case VerbsEnd::kClient: offer.inbox_key = inbox_.remote_key(); break;
    case VerbsEnd::kDialer: offer.inbox_key = inbox_key_; break;
  }
  offer.messages_max = limits_.messages_max;
  offer.slot_count = staging_.slot_count;
  offer.slot_bytes = staging_.slot_bytes;
  offer.slots_address = reinterpret_cast<std::uintptr_t>(staging_.data);
  return offer;
}

absl::Status VerbsConnection::Connect(const wire::VerbsOffer& peer) {
  const VerbsDevice& device = domain_->device();
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device.port();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  int error = ibv_modify_qp(queue_pair_, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  if (error != 0) return Failed(device, "cannot initialize the queue pair", error);

  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(peer.mtu, device.mtu()));
  attributes.dest_qp_num = peer.queue_pair;
  attributes.rq_psn = peer.packet_sequence;
  attributes.min_rnr_timer = kReceiverNotReadyTimer;
  attributes.ah_attr.port_num = device.port();
  attributes.ah_attr.dlid = peer.lid;
  attributes.ah_attr.is_global = device.ethernet() ? 1 : 0;
  attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device.gid().index);
  attributes.ah_attr.grh.hop_limit = kHopLimit;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  error = ibv_modify_qp(queue_pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  if (error != 0) {
    Gid gid;
    std::memcpy(gid.data(), peer.gid.data(), gid.size());
    return absl::UnavailableError(
        fmt::format("RDMA device {} port {} has no route to {}: {}; check that both are in one "
                    "fabric, with a route and a neighbour entry",
                    device.name(), device.port(), GidText(gid), ErrnoText(error)));
  }

  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = packet_sequence_;
  ack_timeout_ = end_ == VerbsEnd::kDaemon ? limits_.ack_timeout : peer.ack_timeout;
  attributes.timeout = ack_timeout_;
  attributes.retry_cnt = limits_.retry_count;
  attributes.rnr_retry = kReceiverNotReadyRetries;
  error = ibv_modify_qp(queue_pair_, &attributes,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
  if (error != 0) return Failed(device, "cannot enable the queue pair to send", error);
  sender_->SetPeer(peer);
  return absl::OkStatus();
}

void VerbsConnection::SetSocket(Descriptor socket, std::string peer) {
  socket_ = std::move(socket);
  peer_ = std::move(peer);
}

// ---- For the transport -------------------------------------------------------------------------

bool VerbsConnection::PostReceives(std::uint32_t count, std::uint64_t work_request_id) {
  constexpr std::uint32_t kAtOnce = 64;
  std::array<ibv_recv_wr, kAtOnce> receives;
  while (count > 0) {
    const std::uint32_t now = std::min(count, kAtOnce);
    for (std::uint32_t i = 0; i < now; ++i) {
      receives[i] = {};  // no buffer: only immediates use receives
      receives[i].wr_id = work_request_id;
      receives[i].next = i + 1 < now ? &receives[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    if (ibv_post_recv(queue_pair_, receives.data(), &refused) != 0) return false;
    count -= now;
  }
  return true;
}

bool VerbsConnection::BindWindows(std::uint64_t work_request_id) {
  const auto bind = [&](ibv_mw* window, const RegisteredMemory& memory, std::uint32_t key) {
    if (window == nullptr) return true;
    ibv_send_wr request{};
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr_id = work_request_id;
    request.bind_mw.mw = window;
    request.bind_mw.rkey = key;
    request.bind_mw.bind_info = {.mr = memory.get(),
                                 .addr = reinterpret_cast<std::uintptr_t>(memory.get()->addr),
                                 .length = memory.get()->length,
                                 .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    ibv_send_wr* refused = nullptr;
    return ibv_post_send(queue_pair_, &request, &refused) == 0;
  };
  return bind(inbox_window_, inbox_, inbox_key_) && bind(slots_window_, slots_, slots_key_);
}

bool VerbsConnection::NoteBound() {
  PHUB_CHECK(windows_to_bind_ > 0);
  return --windows_to_bind_ == 0;
}

void VerbsConnection::NoteTrouble(const ibv_wc& completion) {
  // After an error, all other posted requests complete as flushed, some possibly before the error.
  const bool flushed = completion.status == IBV_WC_WR_FLUSH_ERR;
  if (!flushed && trouble_is_flush_) trouble_.clear();
  trouble_is_flush_ = trouble_.empty() && flushed;
  NoteTrouble(fmt::format("{} (status {}, vendor {:#x})", ibv_wc_status_str(completion.status),
                          static_cast<int>(completion.status), completion.vendor_err));
}

void VerbsConnection::NoteTrouble(std::string_view what) {
  if (!trouble_.empty()) return;
  trouble_ = fmt::format("RDMA device {} port {} ({}){}{}{}: {}", device().name(), device().port(),
                         GidText(device().gid().gid),
                         device().events().port_down() ? ", which is down" : "",
                         peer_.empty() ? "" : ", peer ", peer_, what);
}

std::string VerbsConnection::LastWords() const {
  constexpr std::size_t kBytesMax = 256;
  std::array<char, kBytesMax> bytes;
  const ssize_t count = socket_ ? recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) : 0;
  std::string text(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  // The text goes to logs and terminals, and the peer is not trusted.
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~' || c == '"'; }, '?');
  return text;
}

// A device waits at most four times the configured timeout, and retries retry_count times. For a
// peer that posts no receives it would retry forever.
DurationNs VerbsConnection::patience() const {
  constexpr DurationNs kUnit = 4096;
  constexpr int kSlack = 4;
  return kSecond + (kUnit << ack_timeout_) * kSlack * (limits_.retry_count + 1);
}

// Sets the state to reset, not to error: after that the queue pair transfers nothing in either
// direction, and no completion follows. The same holds if the device was removed. If the device is
// present and the call fails, it could still write an old gradient to memory that has been reused,
// so CheckGivenBack aborts.
void VerbsConnection::Invalidate() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RESET;
  CheckGivenBack(device().context(), "ibv_modify_qp",
                 ibv_modify_qp(queue_pair_, &attributes, IBV_QP_STATE));
  if (!socket_) return;
  // Send the reason to the other end, which may not know it.
  if (!trouble_.empty()) {
    [[maybe_unused]] const ssize_t said =
        send(socket_.get(), trouble_.data(), trouble_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace phub::transport
