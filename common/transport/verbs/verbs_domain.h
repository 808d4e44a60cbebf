// The protection domain of one job on one device, and the memory that the job has registered there.
// The job's queue pairs can access nothing else.
//
// Memory is registered explicitly (never by sending from it) and stays registered until the domain
// is destroyed at the end of the job. Append-only: one thread at a time adds memory; the
// transports' threads look it up without locks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/transport/verbs/verbs_device.h"

struct ibv_pd;
struct ibv_mr;

namespace phub::transport {

// Registered memory; the destructor deregisters it.
class RegisteredMemory {
 public:
  enum class Use : std::uint8_t {
    kSend,     // only this device may access it, to read
    kReceive,  // the peers of the domain's queue pairs may write to it, with its key
    kWindows,  // like kReceive, but only through windows that are bound to one queue pair each
  };
  RegisteredMemory() = default;
  // kResourceExhausted: the message has the size and, if RLIMIT_MEMLOCK was hit, what to do.
  static absl::StatusOr<RegisteredMemory> Create(ibv_pd* domain, const VerbsDevice& device,
                                                 std::byte* data, std::size_t bytes, Use use);
  ~RegisteredMemory();
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;

  ibv_mr* get() const { return region_; }
  std::uint32_t local_key() const;
  std::uint32_t remote_key() const;

 private:
  ibv_mr* region_ = nullptr;
};

struct VerbsRegion {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t local_key = 0;
  std::uint32_t remote_key = 0;
  bool peer_writes = false;  // Use::kReceive: it is announced to peers
};

class VerbsDomain {
 public:
  // Regions of one job on one device. Peers have a table of this size.
  static constexpr std::uint32_t kRegionsMax = 1024;

  // when_full: advice for a full table, for the error of Add.
  static absl::StatusOr<std::shared_ptr<VerbsDomain>> Create(
      std::shared_ptr<const VerbsDevice> device, std::string when_full = {});
  ~VerbsDomain();
  VerbsDomain(const VerbsDomain&) = delete;
  VerbsDomain& operator=(const VerbsDomain&) = delete;

  // Off the data path. Registers [data, data + bytes) for kSend or kReceive; returns the index.
  // `owner` keeps the memory alive. If it is null, the caller must keep the memory alive for longer
  // than the domain. kResourceExhausted also if the table is full.
  absl::StatusOr<std::uint32_t> Add(std::byte* data, std::size_t bytes, RegisteredMemory::Use use,
                                    std::shared_ptr<const void> owner);

  // The functions below are on the data path. Any thread.
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  const VerbsRegion& region(std::uint32_t index) const { return regions_[index]; }  // < count()
  // The index of the region that contains [data, data + bytes), or UINT32_MAX. The search starts at
  // `hint`, which the caller keeps, and sets it to the result: consecutive chunks are usually in
  // the same region.
  std::uint32_t Find(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;

  ibv_pd* get() const { return domain_; }
  const VerbsDevice& device() const { return *device_; }

 private:
  VerbsDomain(std::shared_ptr<const VerbsDevice> device, std::string when_full, ibv_pd* domain);

  const std::shared_ptr<const VerbsDevice> device_;
  const std::string when_full_;
  ibv_pd* const domain_;
  const std::unique_ptr<VerbsRegion[]> regions_;
  std::atomic<std::uint32_t> count_{0};   // increased after the new region is filled in
  std::vector<RegisteredMemory> memory_;  // used only by the adding thread
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace phub::transport
