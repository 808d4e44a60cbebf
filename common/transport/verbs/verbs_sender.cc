#include "common/transport/verbs/verbs_sender.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/transport/form.h"
#include "common/transport/region_address.h"
#include "common/transport/verbs/immediate.h"

namespace phub::transport {
namespace {

// A long message is sent in pieces of at most this share of the inbox or outbox. So one piece is in
// flight while the next one is prepared, and little is skipped at the end of the box.
constexpr std::uint32_t kPiecesPerBox = 4;

constexpr std::uint32_t UnitsOf(std::size_t bytes) {
  return static_cast<std::uint32_t>((bytes + kInboxUnitBytes - 1) / kInboxUnitBytes);
}

}  // namespace

VerbsSender::VerbsSender(VerbsEnd end, std::uint32_t capacity, const VerbsSendMemory& memory,
                         std::shared_ptr<const VerbsDomain> domain,
                         const VerbsQueuePairLimits& limits)
    : end_(end),
      capacity_(capacity),
      memory_(memory),
      domain_(std::move(domain)),
      limits_(limits),
      requests_(std::make_unique<Request[]>(capacity)),
      signals_(std::make_unique<Signal[]>(limits.requests)),
      peer_regions_(end == VerbsEnd::kDaemon
                        ? std::make_unique<PeerRegion[]>(VerbsDomain::kRegionsMax)
                        : nullptr) {
  PHUB_CHECK(capacity > 0 && limits.requests > kTakenReserve);
  PHUB_CHECK(memory.heads != nullptr && memory.outbox != nullptr &&
                 memory.outbox_bytes >= kPiecesPerBox * kInboxUnitBytes &&
                 memory.outbox_bytes % kInboxUnitBytes == 0,
             "outbox_bytes={}", memory.outbox_bytes);
}

void VerbsSender::SetPeer(const wire::VerbsOffer& offer) {
  peer_ = offer;
  if (offer.inbox_key != 0) SetKeys(offer.inbox_key, 0);
}

void VerbsSender::Announce(const wire::VerbsControl& control) {
  PHUB_CHECK(!has_announcement_);
  announcement_ = control;
  has_announcement_ = true;
  blocked_ = false;
}

bool VerbsSender::AddPeerRegion(const wire::VerbsControl& control) {
  if (end_ != VerbsEnd::kDaemon || control.index != peer_region_count_ ||
      control.index >= VerbsDomain::kRegionsMax) {
    return false;
  }
  peer_regions_[peer_region_count_++] = {
      .address = control.address, .bytes = control.bytes, .key = control.key};
  return true;
}

bool VerbsSender::HasPeerPlace(SharedAddress address, std::size_t bytes) const {
  const RegionPlace place = UnpackRegion(address);
  if (place.index >= peer_region_count_) return false;
  const PeerRegion& region = peer_regions_[place.index];
  return place.offset <= region.bytes && bytes <= region.bytes - place.offset;
}

// ---- The queue ---------------------------------------------------------------------------------

void VerbsSender::Push(std::span<const std::byte, wire::kHeaderBytes> encoded,
                       const SendRequest& request) {
  PHUB_CHECK(tail_ - reported_ < capacity_, "capacity={}", capacity_);
  const wire::MessageHeader& header = request.header;
  std::byte* const head = HeadOf(tail_);
  Request& to = at(tail_++);
  std::memcpy(head, encoded.data(), encoded.size());
  to.head_bytes = wire::kHeaderBytes;
  to.payload = request.payload;
  if (!LandsInSlot(header.kind) && !request.payload.empty()) {
    PHUB_CHECK(request.payload.size() <= wire::kInlineBytesMax, "bytes={}", request.payload.size());
    std::memcpy(head + wire::kHeaderBytes, request.payload.data(), request.payload.size());
    to.head_bytes += static_cast<std::uint32_t>(request.payload.size());
    to.payload = {};
  }
  to.cookie = request.cookie;
  to.reply_address = header.reply_address;
  to.iteration = header.iteration;
  to.chunk = header.chunk;
  to.slot = header.slot;
  to.kind = header.kind;
  to.type = header.type;
  to.notify_sent = request.notify_sent;
}

void VerbsSender::PopBack() {
  PHUB_CHECK(tail_ > written_ + (front_.way != Way::kUndecided ? 1 : 0));
  --tail_;
}

bool VerbsSender::NextSent(std::uint64_t& cookie) {
  while (has_unreported()) {
    const Request& request = at(reported_++);
    if (!request.notify_sent) continue;
    cookie = request.cookie;
    return true;
  }
  return false;
}

void VerbsSender::DropUnsent() {
  tail_ = written_ = completed_;
  front_ = {};
}

// ---- Room --------------------------------------------------------------------------------------

// Finds contiguous room in the inbox: the first unit, and the number of units including those that
// are skipped at the end. False if there is no room.
bool VerbsSender::FindInbox(std::size_t bytes, std::uint32_t& unit, std::uint32_t& units) const {
  const std::uint32_t size = peer_.inbox_bytes / kInboxUnitBytes;
  const std::uint32_t wanted = UnitsOf(bytes);
  unit = static_cast<std::uint32_t>(units_sent_ % size);
  units = wanted;
  if (unit + wanted > size) {
    units += size - unit;
    unit = 0;
  }
  return units_sent_ + units - units_taken_ <= size;
}

bool VerbsSender::HasOutbox(std::size_t bytes) const {
  PHUB_DCHECK(bytes <= memory_.outbox_bytes, "bytes={}", bytes);
  const std::size_t at = outbox_put_ % memory_.outbox_bytes;
  const std::size_t skipped =
      at + bytes > memory_.outbox_bytes ? memory_.outbox_bytes - at : std::size_t{0};
  return outbox_put_ + skipped + bytes - outbox_done_ <= memory_.outbox_bytes;
}

std::uint64_t VerbsSender::PieceMax(const Request& request, std::size_t head_bytes) const {
  std::uint64_t bytes = limits_.message_bytes;
  if (!front_.registered) {
    bytes = std::min<std::uint64_t>(bytes, memory_.outbox_bytes / kPiecesPerBox);
  }
  if (front_.way == Way::kInbox) {
    bytes = std::min<std::uint64_t>(bytes, peer_.inbox_bytes / kPiecesPerBox);
  }
  return std::min<std::uint64_t>(bytes, head_bytes + request.payload.size() - front_.put);
}

// ---- Posting -----------------------------------------------------------------------------------

bool VerbsSender::Flush(ibv_qp* queue_pair, std::uint64_t work_request_id,
                        std::size_t& budget_bytes, VerbsCounters& counters,
                        WorkRequestObserver* observer) {
  RequestBatch batch;
  while (budget_bytes > 0) {
    if (batch.full() && !PostBatch(batch, queue_pair, work_request_id, counters, observer)) {
      return false;
    }
    if (!HasRequests(batch)) {
      blocked_ = true;
      break;
    }
    if (!Step(batch, budget_bytes, counters)) break;
  }
  return batch.empty() || PostBatch(batch, queue_pair, work_request_id, counters, observer);
}

// Only the last request of a batch is signaled: when it completes, all before it are complete.
bool VerbsSender::PostBatch(RequestBatch& batch, ibv_qp* queue_pair, std::uint64_t work_request_id,
                            VerbsCounters& counters, WorkRequestObserver* observer) {
  PHUB_CHECK(posted_ + batch.size() - done_ <= limits_.requests, "posted={} done={}", posted_,
             done_);
  batch.last().send_flags |= IBV_SEND_SIGNALED;
  batch.last().wr_id = work_request_id;
  posted_ += batch.size();
  signals_[signals_put_++ % limits_.requests] = {
      .posted = posted_, .written = written_, .outbox = outbox_put_};
  counters.work_requests.Add(batch.size());
  counters.doorbells.Add();
  return batch.Post(queue_pair, observer);
}

bool VerbsSender::SendTaken(ibv_qp* queue_pair, std::uint64_t work_request_id,
                            std::uint32_t immediate, VerbsCounters& counters,
                            WorkRequestObserver* observer) {
  PHUB_CHECK(CanSendTaken(), "posted={} done={}", posted_, done_);
  RequestBatch batch;
  ibv_send_wr& request = batch.Add(IBV_WR_RDMA_WRITE_WITH_IMM);
  request.imm_data = htonl(immediate);
  // The write has no bytes, so the device does not check the key. The address is valid
  // nevertheless.
  request.wr.rdma.remote_addr = peer_.inbox_address;
  request.wr.rdma.rkey = inbox_key_;
  counters.taken_sent.Add();
  return PostBatch(batch, queue_pair, work_request_id, counters, observer);
}

// Adds one work request. False if there is nothing to send, or no room.
bool VerbsSender::Step(RequestBatch& batch, std::size_t& budget_bytes, VerbsCounters& counters) {
  if (front_.way == Way::kUndecided) {
    const bool regions = end_ == VerbsEnd::kClient && announced_regions_ != domain_->count();
    if (has_announcement_ || (has_keys_ && regions)) {
      blocked_ = !StepControl(batch);
      return !blocked_;
    }
    if (!has_keys_ || !has_unsent()) return false;
    Decide(at(written_), counters);
  }
  const Request& request = at(written_);
  const bool added = front_.way == Way::kInbox ? StepInbox(request, batch, counters)
                                               : StepDirect(request, batch, counters);
  if (!added) {
    blocked_ = true;
    return false;
  }
  budget_bytes -= std::min(budget_bytes, step_bytes_);
  return true;
}

void VerbsSender::Decide(const Request& request, VerbsCounters& counters) {
  front_ = {.way = Way::kInbox};
  const std::size_t bytes = request.payload.size();
  if (bytes == 0) {
    front_.registered = true;
    return;
  }
  const std::uint32_t region = domain_->Find(request.payload.data(), bytes, region_hint_);
  front_.registered = region != UINT32_MAX;
  if (front_.registered) front_.local_key = domain_->region(region).local_key;
  if (!front_.registered) counters.sends_copied.Add();
  if (end_ == VerbsEnd::kClient && request.kind == wire::MessageKind::kGradient &&
      request.slot.value < peer_.slot_count && bytes <= peer_.slot_bytes) {
    front_.way = Way::kSlot;
    front_.remote = peer_.slots_address +
                    std::uint64_t{request.slot.value} * (wire::kSlotHeaderBytes + peer_.slot_bytes);
    front_.remote_key = slots_key_;
  } else if (end_ == VerbsEnd::kDaemon && request.kind == wire::MessageKind::kParameters &&
             HasPeerPlace(request.reply_address, bytes)) {
    const RegionPlace place = UnpackRegion(request.reply_address);
    front_.way = Way::kReply;
    front_.remote = peer_regions_[place.index].address + place.offset;
    front_.remote_key = peer_regions_[place.index].key;
  }
}

bool VerbsSender::StepControl(RequestBatch& batch) {
  std::uint32_t unit = 0;
  std::uint32_t units = 0;
  if (!HasWindow() || !HasOutbox(wire::kVerbsControlBytes) ||
      !FindInbox(wire::kVerbsControlBytes, unit, units)) {
    return false;
  }
  wire::VerbsControl control = announcement_;
  if (!has_announcement_) {
    // A region that the peer may not write to is announced too, with key 0, so that the indices are
    // equal at both ends.
    const VerbsRegion& region = domain_->region(announced_regions_);
    control = {.kind = wire::VerbsControlKind::kRegion,
               .index = announced_regions_++,
               .key = region.peer_writes ? region.remote_key : 0,
               .address = region.peer_writes ? reinterpret_cast<std::uintptr_t>(region.data) : 0,
               .bytes = region.peer_writes ? region.bytes : 1};
  }
  has_announcement_ = false;
  std::byte* const body = memory_.outbox + outbox_put_ % memory_.outbox_bytes;
  PHUB_CHECK(outbox_put_ % kInboxUnitBytes == 0);
  wire::EncodeVerbsControl(
      control, std::span<std::byte, wire::kVerbsControlBytes>(body, wire::kVerbsControlBytes));
  outbox_put_ += wire::kVerbsControlBytes;
  ibv_send_wr& request = batch.Add(IBV_WR_RDMA_WRITE_WITH_IMM);
  RequestBatch::AddPart(request, body, wire::kVerbsControlBytes, memory_.local_key);
  request.imm_data = htonl(PackInbox({.placed = false, .control = true, .unit = unit}));
  request.wr.rdma.remote_addr = peer_.inbox_address + std::uint64_t{unit} * kInboxUnitBytes;
  request.wr.rdma.rkey = inbox_key_;
  units_sent_ += units;
  ++messages_sent_;
  return true;
}

// Adds the bytes [put, put + bytes) of head and payload to the work request. REQUIRES: the outbox
// has room for a copy.
void VerbsSender::AddParts(const Request& request, std::size_t head_bytes, std::size_t bytes,
                           ibv_send_wr& work_request, VerbsCounters& counters) {
  const std::size_t from_head = front_.put < head_bytes ? head_bytes - front_.put : 0;
  const std::byte* const head = HeadOf(written_) + front_.put;
  const std::size_t in_head = std::min(from_head, bytes);
  const std::size_t in_payload = bytes - in_head;
  const std::byte* payload = request.payload.data() + (front_.put + in_head - head_bytes);
  std::uint32_t key = front_.local_key;
  const bool as_inline = bytes <= limits_.inline_bytes;
  if (in_payload > 0 && !front_.registered) {
    counters.bytes_copied.Add(in_payload);
    if (!as_inline) {
      const std::size_t at = outbox_put_ % memory_.outbox_bytes;
      if (at + in_payload > memory_.outbox_bytes) outbox_put_ += memory_.outbox_bytes - at;
      std::byte* const copy = memory_.outbox + outbox_put_ % memory_.outbox_bytes;
      std::memcpy(copy, payload, in_payload);
      outbox_put_ += UnitsOf(in_payload) * kInboxUnitBytes;
      payload = copy;
      key = memory_.local_key;
    }
  }
  RequestBatch::AddPart(work_request, head, in_head, memory_.local_key);
  RequestBatch::AddPart(work_request, payload, in_payload, key);
  if (as_inline) work_request.send_flags |= IBV_SEND_INLINE;
  front_.put += bytes;
  step_bytes_ = bytes;
}

// Writes to the message's slot, or to the worker's parameters.
bool VerbsSender::StepDirect(const Request& request, RequestBatch& batch, VerbsCounters& counters) {
  const std::size_t head_bytes = front_.way == Way::kSlot ? wire::kHeaderBytes : 0;
  const std::size_t total = head_bytes + request.payload.size();
  const auto bytes = static_cast<std::size_t>(PieceMax(request, head_bytes));
  PHUB_DCHECK(bytes > 0 && front_.put + bytes <= total, "put={} bytes={} total={}", front_.put,
              bytes, total);
  const bool last = front_.put + bytes == total;
  // A reply in several writes needs a header in the inbox, because the last write's immediate
  // cannot describe the whole reply.
  const bool tells = last && (front_.way == Way::kSlot || bytes == total);
  if (tells && !HasWindow()) return false;
  if (!front_.registered && !HasOutbox(UnitsOf(bytes) * kInboxUnitBytes)) return false;
  ibv_send_wr& work_request = batch.Add(tells ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
  work_request.wr.rdma.remote_addr = front_.remote + front_.put;
  work_request.wr.rdma.rkey = front_.remote_key;
  AddParts(request, head_bytes, bytes, work_request, counters);
  if (!last) return true;
  if (front_.way == Way::kSlot) {
    work_request.imm_data = htonl(PackSlot(request.slot));
    counters.slot_writes.Add();
  } else {
    counters.reply_writes.Add();
    if (!tells) {
      front_ = {.way = Way::kInbox, .registered = true, .head_only = true};
      return true;
    }
    work_request.imm_data = htonl(PackReply(request.chunk, request.type, request.iteration));
  }
  ++messages_sent_;
  Finish(counters);
  return true;
}

bool VerbsSender::StepInbox(const Request& request, RequestBatch& batch, VerbsCounters& counters) {
  const std::size_t head_bytes = request.head_bytes;
  const std::size_t payload_bytes = front_.head_only ? 0 : request.payload.size();
  const std::size_t bytes =
      std::min<std::size_t>(PieceMax(request, head_bytes), head_bytes + payload_bytes - front_.put);
  std::uint32_t unit = 0;
  std::uint32_t units = 0;
  if (!HasWindow() || !FindInbox(bytes, unit, units)) return false;
  if (!front_.registered && !HasOutbox(UnitsOf(bytes) * kInboxUnitBytes)) return false;
  ibv_send_wr& work_request = batch.Add(IBV_WR_RDMA_WRITE_WITH_IMM);
  work_request.imm_data =
      htonl(PackInbox({.placed = front_.head_only, .control = false, .unit = unit}));
  work_request.wr.rdma.remote_addr = peer_.inbox_address + std::uint64_t{unit} * kInboxUnitBytes;
  work_request.wr.rdma.rkey = inbox_key_;
  AddParts(request, head_bytes, bytes, work_request, counters);
  units_sent_ += units;
  ++messages_sent_;
  if (front_.put < head_bytes + payload_bytes) return true;
  counters.inbox_messages.Add();
  Finish(counters);
  return true;
}

void VerbsSender::Finish(VerbsCounters& counters) {
  ++written_;
  front_ = {};
  counters.messages_sent.Add();
}

}  // namespace phub::transport
