// A folder of a test's own, removed with all that is in it.
#pragma once

#include <string>

namespace phub {

class TemporaryFolder {
 public:
  // In `parent`; empty: where the system wants temporary files.
  explicit TemporaryFolder(const std::string& parent = "");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  // Writes a file in it and gives its path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace phub
