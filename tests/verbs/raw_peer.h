// The client's end of a lane without a transport: a queue pair that posts any request that a test
// chooses.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/mapped_memory.h"
#include "common/transport/verbs/verbs_device.h"
#include "common/wire/verbs_lane.h"

namespace phub::verbs_tests {

class RawPeer {
 public:
  // receives: the number of receive requests to post. Without any, it can receive only plain
  // writes.
  explicit RawPeer(std::shared_ptr<const transport::VerbsDevice> device,
                   std::uint32_t receives = kReceives);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  wire::VerbsOffer Offer() const;
  // Connects like an honest client, except for the packet sequence numbers if they are given.
  void Connect(const wire::VerbsOffer& daemon, std::uint32_t first_sent);
  void Connect(const wire::VerbsOffer& daemon) { Connect(daemon, kFirstSent); }

  // Posts one work request over `bytes` of its own memory. Returns the status of its completion, or
  // nothing if no message arrives within a second.
  std::optional<ibv_wc_status> Do(ibv_wr_opcode opcode, std::uint64_t remote, std::uint32_t key,
                                  std::uint32_t bytes, std::uint32_t immediate);

  std::uint32_t region_key() const { return region_->rkey; }  // the key of its own memory
  const std::byte* inbox() const { return memory_.data(); }
  // The memory that it sends from.
  std::byte* memory() const { return memory_.data() + kInboxBytes; }
  static constexpr std::size_t kMemoryBytes = 4096;

 private:
  static constexpr std::uint32_t kInboxBytes = 4096;
  static constexpr std::uint32_t kFirstSent = 77;
  static constexpr std::uint32_t kReceives = 32;

  std::shared_ptr<const transport::VerbsDevice> device_;
  const std::uint32_t receive_count_;
  MappedMemory memory_;
  ibv_pd* domain_ = nullptr;
  ibv_mr* region_ = nullptr;
  ibv_cq* sends_ = nullptr;
  ibv_cq* receives_ = nullptr;
  ibv_qp* queue_pair_ = nullptr;
};

}  // namespace phub::verbs_tests
