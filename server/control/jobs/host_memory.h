// Allocates the memory of jobs on this host: whether it is shared with workers, who prefaults and
// frees its pages, and which devices register it. Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/left_memory.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/jobs/prefaulter.h"

namespace phub::server {

class HostMemory {
 public:
  explicit HostMemory(Context& context) : context_(context), left_(context) {}

  // Call the setters before the first Join. Their arguments must outlive every job.
  // Sets how workers of this host reach the shared-memory listener. Without it, no memory is
  // shared.
  void SetSharedMemoryEndpoint(std::string name, std::string boot_id);
  void SetMemoryListener(JobMemoryListener& listener) { memory_listener_ = &listener; }
  // Without a prefaulter, the calling thread prefaults and frees pages, under the lock.
  void SetPrefaulter(Prefaulter& taker) { prefaulter_ = &taker; }

  bool shares_memory() const { return !endpoint_.name().empty(); }
  // Devices may register memory, which then stays theirs until the job ends.
  bool registers_memory() const { return memory_listener_ != nullptr; }
  LentMemory::Kind lent_kind() const {
    return shares_memory() ? LentMemory::Kind::kShared : LentMemory::Kind::kOrdinary;
  }
  const v1::SharedMemoryEndpoint& endpoint() const { return endpoint_; }

  LeftMemory& left() { return left_; }
  const LeftMemory& left() const { return left_; }

  // Prefaults pages. `pages` reports when they are there; null: they are there already.
  absl::Status TakePagesOf(std::vector<UnbackedMemory> memory, PagesFlag& pages) const;
  void TellOfParameters(const Job& job, BatchRecord& record);
  // Frees the memory of a job and notifies the listener. The flags report when both are done.
  std::vector<DoneFlag> Free(Incarnation incarnation,
                             std::shared_ptr<std::vector<std::shared_ptr<const void>>> unwanted);
  // Frees other memory by dropping this reference. Null: it is free already.
  DoneFlag FreeLater(std::shared_ptr<const void> unwanted) const;

 private:
  Context& context_;
  LeftMemory left_;
  JobMemoryListener* memory_listener_ = nullptr;
  Prefaulter* prefaulter_ = nullptr;   // may be null, and so may memory_listener_
  v1::SharedMemoryEndpoint endpoint_;  // without a name: no memory is shared
};

}  // namespace phub::server
