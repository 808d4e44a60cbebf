#include "tests/verbs/raw_peer.h"

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/base/check.h"
#include "common/transport/verbs/immediate.h"

namespace phub::verbs_tests {
namespace {

constexpr int kQueueEntries = 64;

// Waits for at most a second.
bool Wait(ibv_cq* queue, ibv_wc& completion) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (ibv_poll_cq(queue, 1, &completion) == 0) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

RawPeer::RawPeer(std::shared_ptr<const transport::VerbsDevice> device, std::uint32_t receives)
    : device_(std::move(device)),
      receive_count_(receives),
      memory_(
          MappedMemory::Allocate(kInboxBytes + kMemoryBytes, MappedMemory::Backing::kPrefault)) {
  domain_ = ibv_alloc_pd(device_->context());
  const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  region_ = ibv_reg_mr(domain_, memory_.data(), memory_.bytes(), access);
  sends_ = ibv_create_cq(device_->context(), kQueueEntries, nullptr, nullptr, 0);
  receives_ = ibv_create_cq(device_->context(), kQueueEntries, nullptr, nullptr, 0);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = sends_;
  attributes.recv_cq = receives_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.cap = {.max_send_wr = 16,
                    .max_recv_wr = kReceives,
                    .max_send_sge = 1,
                    .max_recv_sge = 1,
                    .max_inline_data = 0};
  queue_pair_ = ibv_create_qp(domain_, &attributes);
  PHUB_CHECK(queue_pair_ != nullptr && region_ != nullptr);
}

RawPeer::~RawPeer() {
  ibv_destroy_qp(queue_pair_);
  ibv_destroy_cq(sends_);
  ibv_destroy_cq(receives_);
  ibv_dereg_mr(region_);
  ibv_dealloc_pd(domain_);
}

wire::VerbsOffer RawPeer::Offer() const {
  wire::VerbsOffer offer;
  offer.mtu = device_->mtu();
  offer.queue_pair = queue_pair_->qp_num;
  offer.packet_sequence = kFirstSent;
  std::memcpy(offer.gid.data(), device_->gid().gid.data(), offer.gid.size());
  offer.inbox_address = reinterpret_cast<std::uintptr_t>(memory_.data());
  offer.inbox_bytes = kInboxBytes;
  offer.inbox_key = region_->rkey;
  offer.messages_max = 16;
  return offer;
}

void RawPeer::Connect(const wire::VerbsOffer& daemon, std::uint32_t first_sent) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = device_->port();
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  PHUB_CHECK(ibv_modify_qp(queue_pair_, &attributes,
                           IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ==
             0);
  for (std::uint32_t i = 0; i < receive_count_; ++i) {
    ibv_recv_wr receive{};
    ibv_recv_wr* refused = nullptr;
    PHUB_CHECK(ibv_post_recv(queue_pair_, &receive, &refused) == 0);
  }
  attributes = {};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = static_cast<ibv_mtu>(std::min(daemon.mtu, device_->mtu()));
  attributes.dest_qp_num = daemon.queue_pair;
  attributes.rq_psn = daemon.packet_sequence;
  attributes.min_rnr_timer = 6;
  attributes.max_dest_rd_atomic = 1;
  attributes.ah_attr.port_num = device_->port();
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device_->gid().index);
  attributes.ah_attr.grh.hop_limit = 64;
  std::memcpy(attributes.ah_attr.grh.dgid.raw, daemon.gid.data(), daemon.gid.size());
  PHUB_CHECK(ibv_modify_qp(queue_pair_, &attributes,
                           IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                               IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ==
             0);
  attributes = {};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = first_sent;
  attributes.timeout = 12;  // about 17 ms, so that requests without an answer fail soon
  attributes.retry_cnt = 2;
  attributes.rnr_retry = 7;
  attributes.max_rd_atomic = 1;
  PHUB_CHECK(ibv_modify_qp(queue_pair_, &attributes,
                           IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                               IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

std::optional<ibv_wc_status> RawPeer::Do(ibv_wr_opcode opcode, std::uint64_t remote,
                                         std::uint32_t key, std::uint32_t bytes,
                                         std::uint32_t immediate) {
  PHUB_CHECK(bytes <= kMemoryBytes);
  ibv_sge part{
      .addr = reinterpret_cast<std::uintptr_t>(memory()), .length = bytes, .lkey = region_->lkey};
  ibv_send_wr request{};
  request.opcode = opcode;
  request.sg_list = &part;
  request.num_sge = bytes > 0 ? 1 : 0;
  request.imm_data = htonl(immediate);
  request.wr.rdma.remote_addr = remote;
  request.wr.rdma.rkey = key;
  ibv_send_wr* refused = nullptr;
  if (ibv_post_send(queue_pair_, &request, &refused) != 0) return std::nullopt;
  ibv_wc completion{};
  if (!Wait(sends_, completion)) return std::nullopt;
  return completion.status;
}

}  // namespace phub::verbs_tests
