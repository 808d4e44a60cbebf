#include "common/transport/verbs/verbs_domain.h"

#include <fmt/format.h>
#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "common/base/check.h"
#include "common/base/errno_text.h"
#include "common/base/units.h"

namespace phub::transport {
namespace {

int AccessFor(RegisteredMemory::Use use) {
  switch (use) {
    case RegisteredMemory::Use::kSend: return 0;
    case RegisteredMemory::Use::kReceive: return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    case RegisteredMemory::Use::kWindows: return IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
  }
  return 0;
}

std::string WhyNotPinned(int error) {
  rlimit limit{};
  if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return ErrnoText(error);
  return fmt::format(
      "RLIMIT_MEMLOCK allows {} bytes of pinned memory; raise it (ulimit -l unlimited, or "
      "LimitMEMLOCK=infinity in the service)",
      limit.rlim_cur);
}

}  // namespace

absl::StatusOr<RegisteredMemory> RegisteredMemory::Create(ibv_pd* domain, const VerbsDevice& device,
                                                          std::byte* data, std::size_t bytes,
                                                          Use use) {
  PHUB_CHECK(data != nullptr && bytes > 0);
  RegisteredMemory memory;
  const int access = AccessFor(use);  // a variable, because ibv_reg_mr is a macro
  memory.region_ = ibv_reg_mr(domain, data, bytes, access);
  if (memory.region_ != nullptr) return memory;
  return absl::ResourceExhaustedError(
      fmt::format("cannot register {} bytes with RDMA device {}: {}", bytes, device.name(),
                  WhyNotPinned(errno)));
}

RegisteredMemory::~RegisteredMemory() {
  if (region_ == nullptr) return;
  ibv_context* const context = region_->context;
  CheckGivenBack(context, "ibv_dereg_mr", ibv_dereg_mr(region_));
}
RegisteredMemory::RegisteredMemory(RegisteredMemory&& other) noexcept
    : region_(std::exchange(other.region_, nullptr)) {}
RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(region_, other.region_);
  return *this;
}

std::uint32_t RegisteredMemory::local_key() const { return region_->lkey; }
std::uint32_t RegisteredMemory::remote_key() const { return region_->rkey; }

absl::StatusOr<std::shared_ptr<VerbsDomain>> VerbsDomain::Create(
    std::shared_ptr<const VerbsDevice> device, std::string when_full) {
  ibv_pd* domain = ibv_alloc_pd(device->context());
  if (domain == nullptr) {
    return absl::ResourceExhaustedError(fmt::format(
        "RDMA device {} has no protection domain left: {}", device->name(), ErrnoText(errno)));
  }
  return std::shared_ptr<VerbsDomain>(
      new VerbsDomain(std::move(device), std::move(when_full), domain));
}

VerbsDomain::VerbsDomain(std::shared_ptr<const VerbsDevice> device, std::string when_full,
                         ibv_pd* domain)
    : device_(std::move(device)),
      when_full_(std::move(when_full)),
      domain_(domain),
      regions_(std::make_unique<VerbsRegion[]>(kRegionsMax)) {}

VerbsDomain::~VerbsDomain() {
  memory_.clear();
  CheckGivenBack(device_->context(), "ibv_dealloc_pd", ibv_dealloc_pd(domain_));
}

absl::StatusOr<std::uint32_t> VerbsDomain::Add(std::byte* data, std::size_t bytes,
                                               RegisteredMemory::Use use,
                                               std::shared_ptr<const void> owner) {
  PHUB_CHECK(use != RegisteredMemory::Use::kWindows);
  const std::uint32_t index = count_.load(std::memory_order_relaxed);
  if (index == kRegionsMax) {
    return absl::ResourceExhaustedError(
        fmt::format("a job can register at most {} regions of memory with RDMA device {}{}{}",
                    kRegionsMax, device_->name(), when_full_.empty() ? "" : "; ", when_full_));
  }
  auto memory = RegisteredMemory::Create(domain_, *device_, data, bytes, use);
  if (!memory.ok()) return memory.status();
  regions_[index] = {.data = data,
                     .bytes = bytes,
                     .local_key = memory->local_key(),
                     .remote_key = memory->remote_key(),
                     .peer_writes = use == RegisteredMemory::Use::kReceive};
  memory_.push_back(*std::move(memory));
  owners_.push_back(std::move(owner));
  count_.store(index + 1, std::memory_order_release);
  return index;
}

std::uint32_t VerbsDomain::Find(const std::byte* data, std::size_t bytes,
                                std::uint32_t& hint) const {
  const std::less<const std::byte*> before;
  const std::uint32_t known = count();
  for (std::uint32_t i = 0; i < known; ++i) {
    const std::uint32_t index = (hint + i) % known;
    const VerbsRegion& at = regions_[index];
    if (before(data, at.data) || bytes > at.bytes) continue;
    if (static_cast<std::size_t>(data - at.data) > at.bytes - bytes) continue;
    hint = index;
    return index;
  }
  return UINT32_MAX;
}

}  // namespace phub::transport
