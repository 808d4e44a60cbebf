// Shared memory that the daemon has given up, but that processes still map or have open: workers of
// ended jobs, earlier processes of a rank. It stays charged to the tenant until nobody uses it.
//
// Every shared memory of a job has a hook. When the daemon unmaps the memory, the hook hands its
// descriptor over, the kernel starts to watch for the last user, and the descriptor is closed.
// Check() reads what the kernel has reported and sets the charge in the ledger. The accounts of
// jobs close in the same turn as their remains are charged, so nothing is free in between.
// Owned by Control; under control's lock, except that hooks run on any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/shared_memory.h"
#include "server/control/context.h"

namespace phub::server {

class LeftMemory {
 public:
  explicit LeftMemory(Context& context);
  ~LeftMemory();

  // Charges from now on. Call it before the first job. An error: the kernel cannot report.
  absl::Status Start();
  // For the shared memory of a job; empty without Start().
  SharedMemory::ReleaseHook HookOf(const Account& account) const;
  // Charges new remains, and returns what nobody uses any more.
  void Check();
  // When Check() should run next; kNever if nothing is left.
  TimeNs NextCheck() const;

 private:
  struct Remains;  // what the hooks share

  Context& context_;
  std::shared_ptr<Remains> remains_;  // null without Start()
  TimeNs checked_at_ = 0;
};

}  // namespace phub::server
