// Writes changes to the control store, also while its disk fails. A change that an administrator
// must be able to make on a full disk (suspend, revoke, set-quota, drain) is deferred: it applies
// in memory, waits here, and is written once the disk works again. Changes are written in the order
// in which they were made. If phubd stops before that, deferred changes are lost, so everything
// that shows them must say so. A shared store has none; local_changes.h is for its outages.
//
// Also watches the free space of state_dir, so that new jobs are refused before the disk is full.
// One thread at a time, except state(): any thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/tenant/control_store.h"

namespace phub::server {

struct StoreState {
  std::string fault = {};      // why changes cannot be written; empty: they can
  std::uint64_t deferred = 0;  // changes that wait for the disk
  bool shared = false;         // the store is not on this host's disk
  friend bool operator==(const StoreState&, const StoreState&) = default;
};

class StoreWriter {
 public:
  using Change = std::function<absl::Status(ControlStore&)>;

  explicit StoreWriter(ControlStore& store) : store_(store) {}

  // Is called before each change of Write and its like.
  void SetBefore(std::function<void()> before) { before_ = std::move(before); }
  // Writes the change, after all that wait.
  absl::Status Write(const Change& change);
  // The same, but if the store fails, the change waits and the result is OK.
  absl::Status WriteOrDefer(Change change);
  // WriteOrDefer, or Write if the store is shared: others could decide on the record meanwhile.
  absl::Status WriteRecord(Change change) {
    return store_.is_shared() ? Write(change) : WriteOrDefer(std::move(change));
  }
  // Writes what waits and checks the disk. To be called regularly.
  void Retry();
  // Whether entries that tenants cause may be written.
  bool HasRoomForTenants() const;

  StoreState state() const;
  // "3 changes are not on disk yet (...) and are lost if phubd stops"; empty if all are.
  std::string Warning() const;

 private:
  absl::Status WriteDeferred();
  void SetFault(const std::string& fault);
  // Why there are no new jobs after a change was not written.
  std::string FaultOf(const absl::Status& status) const;

  ControlStore& store_;
  std::function<void()> before_;
  std::deque<Change> deferred_;
  mutable std::mutex mutex_;
  StoreState state_;  // under mutex_
};

}  // namespace phub::server
