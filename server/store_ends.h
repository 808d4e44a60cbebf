// The control stores that `phubctl store` can read, copy and write: of one daemon in SQLite, or of
// a cluster in etcd. One thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/random.h"
#include "server/config/settings.h"
#include "server/tenant/control_store.h"
#include "server/tenant/store_image.h"

namespace phub::server {

class StoreEnd {
 public:
  virtual ~StoreEnd() = default;
  // "sqlite:/var/lib/phub", "etcd:https://a:2379 (/phub)".
  virtual const std::string& name() const = 0;
  // The file of its token key. Others are next to it.
  virtual std::string key_path() const = 0;
  // Reads it without changing anything. NOT_FOUND: there is no store. FAILED_PRECONDITION: a daemon
  // has it open.
  virtual absl::StatusOr<StoreImage> Look() = 0;

  // As a source: no daemon changes it any more, until it is thawed.
  virtual absl::Status Freeze(const std::string& why, const AuditNote& note) = 0;
  virtual absl::Status Thaw(const AuditNote& note) = 0;
  // As a target: nobody else changes it while this object exists. Creates the store if it does not
  // exist, with `key` as its token key unless it has one.
  virtual absl::Status Hold(const std::string& why, const std::string& key) = 0;
  // After Freeze or Hold.
  virtual absl::StatusOr<StoreImage> Read() = 0;
  // After Hold. Writes what the plan has.
  virtual absl::Status Import(const CopyPlan& plan, const AuditNote& note) = 0;
};

// `settings` has the files for etcd. INVALID_ARGUMENT: `store` is neither "sqlite:DIR" nor
// "etcd:URL,...", or a file is missing.
absl::StatusOr<std::unique_ptr<StoreEnd>> MakeStoreEnd(const std::string& store, Settings settings,
                                                       Random& random);

}  // namespace phub::server
