// What one job has on one device: a protection domain, and the memory that it has registered there.
// A queue pair of the job can touch nothing else.
//
// Registration is explicit and lasts until the domain goes, at the end of the job: no memory is
// registered because somebody sends from it. Append-only: one cold thread adds (or several, in
// turn); transports' threads look up without locks.
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

// Registered memory, deregistered at the end.
class RegisteredMemory {
 public:
  enum class Use : std::uint8_t {
    kSend,     // this device reads it; nobody else may touch it
    kReceive,  // the peers of the domain's queue pairs write there, by its key
    kWindows,  // as kReceive, but only through windows that are bound to one queue pair each
  };
  RegisteredMemory() = default;
  // kResourceExhausted: with the bytes, and what to do if it was RLIMIT_MEMLOCK.
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
  bool peer_writes = false;  // Use::kReceive: peers are told of it
};

class VerbsDomain {
 public:
  // Regions of one job on one device. Peers keep a table of as many.
  static constexpr std::uint32_t kRegionsMax = 1024;

  // when_full: what to do about a full table, for the error of Add.
  static absl::StatusOr<std::shared_ptr<VerbsDomain>> Create(
      std::shared_ptr<const VerbsDevice> device, std::string when_full = {});
  ~VerbsDomain();
  VerbsDomain(const VerbsDomain&) = delete;
  VerbsDomain& operator=(const VerbsDomain&) = delete;

  // Cold. Registers [data, data + bytes), kept alive by `owner` (null: by whoever calls, for longer
  // than the domain). kSend or kReceive. The index; kResourceExhausted too when the table is full.
  absl::StatusOr<std::uint32_t> Add(std::byte* data, std::size_t bytes, RegisteredMemory::Use use,
                                    std::shared_ptr<const void> owner);

  // Hot; any thread from here on.
  std::uint32_t count() const { return count_.load(std::memory_order_acquire); }
  const VerbsRegion& region(std::uint32_t index) const { return regions_[index]; }  // < count()
  // The region that holds [data, data + bytes) whole, or UINT32_MAX. The search starts at `hint`,
  // the caller's own, which it leaves at what it found: chunks come in the order of keys.
  std::uint32_t Find(const std::byte* data, std::size_t bytes, std::uint32_t& hint) const;

  ibv_pd* get() const { return domain_; }
  const VerbsDevice& device() const { return *device_; }

 private:
  VerbsDomain(std::shared_ptr<const VerbsDevice> device, std::string when_full, ibv_pd* domain);

  const std::shared_ptr<const VerbsDevice> device_;
  const std::string when_full_;
  ibv_pd* const domain_;
  const std::unique_ptr<VerbsRegion[]> regions_;
  std::atomic<std::uint32_t> count_{0};   // published when the region before it is filled in
  std::vector<RegisteredMemory> memory_;  // the adding thread's
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace phub::transport
