// The file in which a daemon keeps what it has changed while etcd did not answer
// (server/tenant/local_changes.h): one record (record.h) next to the token key. Its tag has the
// cluster and the daemon. So a part of a file, a changed one, and the file of another daemon or
// cluster are an error, and phubd does not start with it. State thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/etcd/record.h"
#include "server/tenant/local_changes.h"

namespace phub::server::etcd {

class LocalFile final : public LocalChangeFile {
 public:
  // `records` must outlive it.
  LocalFile(const Records& records, const std::string& token_key_path, const std::string& daemon);

  absl::StatusOr<std::vector<LocalChange>> Read() override;
  absl::Status Write(const std::vector<LocalChange>& changes) override;
  const std::string& path() const override { return path_; }

 private:
  const Records& records_;
  const std::string path_;
  const std::string key_;
};

}  // namespace phub::server::etcd
