#include "server/control/jobs/host_memory.h"

#include <utility>

#include "server/control/on_control.h"

namespace phub::server {

void HostMemory::SetSharedMemoryEndpoint(std::string name, std::string boot_id) {
  endpoint_.set_name(std::move(name));
  endpoint_.set_boot_id(std::move(boot_id));
}

// Without a prefaulter this blocks until the pages are there.
absl::Status HostMemory::TakePagesOf(std::vector<UnbackedMemory> memory, PagesFlag& pages) const {
  PHUB_ON_CONTROL();
  if (memory.empty()) return absl::OkStatus();
  if (prefaulter_ != nullptr) {
    pages = prefaulter_->Take(std::move(memory));
    return absl::OkStatus();
  }
  for (const UnbackedMemory& each : memory) {
    if (!TakePages(each.data, each.bytes)) return absl::ResourceExhaustedError("out of memory");
  }
  return absl::OkStatus();
}

// With several daemons in the rack, ordinary memory is not registered with devices: registering
// would back all of its pages, but only those of this daemon's own chunks are charged. Replies from
// there are copied when they are sent.
void HostMemory::TellOfParameters(const Job& job, BatchRecord& record) {
  PHUB_ON_CONTROL();
  if (memory_listener_ == nullptr) return;
  const auto tell = [&](std::byte* data, std::size_t bytes, std::shared_ptr<const void> owner) {
    DoneFlag done =
        memory_listener_->OnParameters(job.account.incarnation, data, bytes, std::move(owner));
    if (done != nullptr) record.known.push_back(std::move(done));
  };
  const LentMemory& shared = record.parameters.shared;
  if (shared.bytes() > 0) tell(shared.data(), shared.bytes(), shared.shared());
  const std::shared_ptr<const MappedMemory>& ordinary = record.parameters.ordinary;
  if (ordinary != nullptr && context_.options.rack_endpoints.size() <= 1) {
    tell(ordinary->data(), ordinary->bytes(), ordinary);
  }
  if (job.rack_run == nullptr) return;
  for (std::uint32_t core = 0; core < record.parts.size(); ++core) {
    const std::shared_ptr<KeyBatch>& part = record.parts[core];
    if (!part->accumulators) continue;
    DoneFlag done =
        memory_listener_->OnSums(job.account.incarnation, CoreIndex{core},
                                 part->accumulators.data(), part->accumulators.bytes(), part);
    if (done != nullptr) record.known.push_back(std::move(done));
  }
}

DoneFlag HostMemory::FreeLater(std::shared_ptr<const void> unwanted) const {
  return prefaulter_ == nullptr ? nullptr : prefaulter_->Free(std::move(unwanted));
}

std::vector<DoneFlag> HostMemory::Free(
    Incarnation incarnation, std::shared_ptr<std::vector<std::shared_ptr<const void>>> unwanted) {
  PHUB_ON_CONTROL();
  std::vector<DoneFlag> flags;
  if (memory_listener_ != nullptr) {
    DoneFlag done = memory_listener_->OnReleased(incarnation);
    if (done != nullptr) flags.push_back(std::move(done));
  }
  if (prefaulter_ != nullptr) flags.push_back(prefaulter_->Free(std::move(unwanted)));
  return flags;
}

}  // namespace phub::server
