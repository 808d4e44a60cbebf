#include "tests/support/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/check.h"

namespace phub {

TemporaryFolder::TemporaryFolder(const std::string& parent) {
  const std::filesystem::path where =
      parent.empty() ? std::filesystem::temp_directory_path() : std::filesystem::path(parent);
  path_ = (where / "phub-test-").string() + std::string(6, 'X');  // mkdtemp's pattern
  PHUB_CHECK(mkdtemp(path_.data()) != nullptr, "path={} errno={}", path_, errno);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;  // the system cleans up what cannot be removed
  std::filesystem::remove_all(path_, ignored);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& text) const {
  std::string path = path_ + "/" + name;
  std::ofstream(path) << text;
  return path;
}

}  // namespace phub
