// A temporary folder for a test, removed with its contents.
#pragma once

#include <string>

namespace phub {

class TemporaryFolder {
 public:
  // In `parent`; if empty, in the system's folder for temporary files.
  explicit TemporaryFolder(const std::string& parent = "");
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  // Writes a file in it. Returns the path.
  std::string Write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

}  // namespace phub
