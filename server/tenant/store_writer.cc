#include "server/tenant/store_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_text.h"
#include "server/tenant/ledger.h"

namespace phub::server {
namespace {

// Bounds memory. An administrator makes far fewer changes before the disk is repaired.
constexpr std::size_t kDeferredMax = 4096;
// Free space on state_dir's file system that tenants may not use: new jobs and tenants' audit
// entries stop. A small file system keeps a tenth of its size.
constexpr std::uint64_t kReserveBytes = 64 << 20;
constexpr std::uint64_t kReserveDivisor = 10;
// The size of control.db at which tenants' audit entries stop.
constexpr std::uint64_t kTenantsShareBytes = std::uint64_t{1} << 30;

bool IsLow(const DiskSpace& space) {
  return space.free_bytes < std::min(kReserveBytes, space.total_bytes / kReserveDivisor);
}

// The store works, but refuses this change.
bool IsRefused(const absl::Status& status) {
  return absl::IsAlreadyExists(status) || absl::IsAborted(status);
}

}  // namespace

absl::Status StoreWriter::WriteDeferred() {
  while (!deferred_.empty()) {
    if (absl::Status status = deferred_.front()(store_); !status.ok()) {
      if (!IsRefused(status)) return status;
      LogError("event=deferred_change_dropped error=\"{}\"", MessageOf(status));
    }
    deferred_.pop_front();
  }
  return absl::OkStatus();
}

absl::Status StoreWriter::Write(const Change& change) {
  if (before_) before_();
  absl::Status status = WriteDeferred();
  if (status.ok()) status = change(store_);
  if (status.ok() && !state().fault.empty()) Retry();
  return status;
}

absl::Status StoreWriter::WriteOrDefer(Change change) {
  absl::Status status = Write(change);
  // A constraint of the database, or another revision, is not a fault of the disk.
  if (status.ok() || IsRefused(status)) return status;
  if (deferred_.size() >= kDeferredMax) return status;
  deferred_.push_back(std::move(change));
  SetFault(FaultOf(status));
  LogError(
      "event=change_not_durable deferred={} error=\"{}\" effect=\"applied in memory; lost if phubd "
      "stops before the disk works again\"",
      deferred_.size(), MessageOf(status));
  return absl::OkStatus();
}

void StoreWriter::Retry() {
  const std::size_t waiting = deferred_.size();
  if (absl::Status status = WriteDeferred(); !status.ok()) {
    return SetFault(FaultOf(status));
  }
  if (waiting > 0) LogWarning("event=changes_durable count={}", waiting);
  if (store_.is_shared()) return SetFault(store_.Fault());
  const DiskSpace space = store_.Space();
  if (!IsLow(space)) return SetFault("");
  SetFault(fmt::format("the file system of state_dir has only {} of {} free",
                       FormatBytes(space.free_bytes), FormatBytes(space.total_bytes)));
}

bool StoreWriter::HasRoomForTenants() const {
  if (!deferred_.empty()) return false;
  const DiskSpace space = store_.Space();
  return !IsLow(space) && space.used_bytes < kTenantsShareBytes;
}

std::string StoreWriter::FaultOf(const absl::Status& status) const {
  return store_.is_shared() ? store_.Fault() : std::string(MessageOf(status));
}

void StoreWriter::SetFault(const std::string& fault) {
  bool began = false;
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    began = state_.fault.empty() && !fault.empty();
    ended = !state_.fault.empty() && fault.empty();
    state_ = {fault, deferred_.size(), store_.is_shared()};
  }
  if (began) LogError("event=control_store_fault error=\"{}\" effect=\"no new jobs\"", fault);
  if (ended) LogInfo("event=control_store_recovered");
}

StoreState StoreWriter::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

std::string StoreWriter::Warning() const {
  const StoreState now = state();
  if (now.deferred == 0) return {};
  return fmt::format(
      "{} change(s) are applied but not on disk, and are lost if phubd stops: {}. Free space on "
      "the "
      "file system of state_dir; phubd retries every few seconds",
      now.deferred, now.fault);
}

}  // namespace phub::server
