// A copy of the files of a control store, which can be opened without changing the original.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace phub::server {

class TemporaryCopy {
 public:
  // The copy is in a folder within state_dir that only its owner can read, and is removed with this
  // object. RESOURCE_EXHAUSTED: there is no space. REQUIRES: no phubd uses the store.
  static absl::StatusOr<std::unique_ptr<TemporaryCopy>> Make(const std::string& state_dir);
  ~TemporaryCopy();
  TemporaryCopy(const TemporaryCopy&) = delete;
  TemporaryCopy& operator=(const TemporaryCopy&) = delete;

  const std::string& path() const { return path_; }

 private:
  explicit TemporaryCopy(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

}  // namespace phub::server
