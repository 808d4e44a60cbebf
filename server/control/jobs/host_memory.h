// Where the memory of jobs comes from on this host: shared with workers or not, by whom its pages
// are taken and given back, and which devices learn of it. Owned by Control; under control's lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/control/context.h"
#include "server/control/jobs/job.h"
#include "server/control/jobs/memory_listener.h"
#include "server/control/jobs/prefaulter.h"

namespace phub::server {

class HostMemory {
 public:
  explicit HostMemory(Context& context) : context_(context) {}

  // The setters come before the first Join; what they name outlives every job.
  // How workers of this host reach the shared-memory listener. Without it nothing is shared.
  void SetSharedMemoryEndpoint(std::string name, std::string boot_id);
  void SetMemoryListener(JobMemoryListener& listener) { memory_listener_ = &listener; }
  // Without one, pages are taken and given back by the thread that calls, under the lock.
  void SetPrefaulter(Prefaulter& taker) { prefaulter_ = &taker; }

  bool shares_memory() const { return !endpoint_.name().empty(); }
  LentMemory::Kind lent_kind() const {
    return shares_memory() ? LentMemory::Kind::kShared : LentMemory::Kind::kOrdinary;
  }
  const v1::SharedMemoryEndpoint& endpoint() const { return endpoint_; }

  // `pages` says when the pages are there; null: they are.
  absl::Status TakePagesOf(std::vector<UnbackedMemory> memory, PagesFlag& pages) const;
  void TellOfParameters(const Job& job, BatchRecord& record);
  // Gives back what a job had, and tells the listener: the flags say when both are done.
  std::vector<DoneFlag> Free(Incarnation incarnation,
                             std::shared_ptr<std::vector<std::shared_ptr<const void>>> unwanted);

 private:
  Context& context_;
  JobMemoryListener* memory_listener_ = nullptr;
  Prefaulter* prefaulter_ = nullptr;   // both may be null
  v1::SharedMemoryEndpoint endpoint_;  // without a name: nothing is shared
};

}  // namespace phub::server
