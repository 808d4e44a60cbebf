// Work requests that are posted with one ring of the doorbell. A local variable of one Flush.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"

namespace phub::transport {

// Observes posted work requests, for tests that check where reads and writes go. Called on the
// transport's thread, before the doorbell.
class WorkRequestObserver {
 public:
  virtual ~WorkRequestObserver() = default;
  virtual void OnPost(const ibv_send_wr& request) = 0;
};

class RequestBatch {
 public:
  static constexpr std::size_t kRequestsMax = 32;
  static constexpr int kPartsMax = 2;

  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == kRequestsMax; }
  std::size_t size() const { return count_; }

  // REQUIRES: !full().
  ibv_send_wr& Add(ibv_wr_opcode opcode) {
    PHUB_DCHECK(!full());
    ibv_send_wr& request = requests_[count_];
    request = {};
    request.opcode = opcode;
    request.sg_list = &parts_[count_ * kPartsMax];
    if (count_ > 0) requests_[count_ - 1].next = &request;
    ++count_;
    return request;
  }
  static void AddPart(ibv_send_wr& request, const std::byte* data, std::size_t bytes,
                      std::uint32_t local_key) {
    if (bytes == 0) return;
    PHUB_DCHECK(request.num_sge < kPartsMax);
    request.sg_list[request.num_sge++] = {.addr = reinterpret_cast<std::uintptr_t>(data),
                                          .length = static_cast<std::uint32_t>(bytes),
                                          .lkey = local_key};
  }
  // REQUIRES: !empty().
  ibv_send_wr& last() {
    PHUB_DCHECK(!empty());
    return requests_[count_ - 1];
  }

  // REQUIRES: !empty(). False if the queue pair rejects a request.
  [[nodiscard]] bool Post(ibv_qp* queue_pair, WorkRequestObserver* observer) {
    PHUB_DCHECK(!empty() && requests_[count_ - 1].next == nullptr);
    if (observer != nullptr) {
      for (std::size_t i = 0; i < count_; ++i) observer->OnPost(requests_[i]);
    }
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(queue_pair, requests_.data(), &refused);
    count_ = 0;
    return error == 0;
  }

 private:
  std::array<ibv_send_wr, kRequestsMax> requests_;
  std::array<ibv_sge, kRequestsMax * kPartsMax> parts_;
  std::size_t count_ = 0;
};

}  // namespace phub::transport
