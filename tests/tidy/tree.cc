#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

constexpr const char* kRoot = PHUB_SOURCE_DIR;
constexpr const char* kFolders[] = {"aggregator", "bench", "client", "cmake", "common",
                                    "deploy",     "proto", "server", "tests", ".ci"};

bool IsText(const std::filesystem::path& path) {
  static const std::vector<std::string> kText = {".h",  ".cc", ".proto", ".cmake", ".txt",
                                                 ".sh", ".py", ".toml",  ".md",    ".service"};
  const std::string name = path.filename().string();
  // Scripts have no extension: deploy/quickstart.
  return path.extension().empty() ||
         std::find(kText.begin(), kText.end(), path.extension().string()) != kText.end() ||
         name == "CMakeLists.txt";
}

SourceFile Read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {path.lexically_relative(kRoot).generic_string(),
          std::string(std::istreambuf_iterator<char>(stream), {})};
}

std::vector<SourceFile> ReadAll(std::vector<std::filesystem::path> paths) {
  std::sort(paths.begin(), paths.end());
  std::vector<SourceFile> files;
  for (const std::filesystem::path& path : paths) files.push_back(Read(path));
  return files;
}

}  // namespace

std::vector<SourceFile> ReadTree() {
  const std::filesystem::path root(kRoot);
  std::vector<std::filesystem::path> paths;
  for (const char* folder : kFolders) {
    if (!std::filesystem::exists(root / folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const bool corpus = entry.path().string().find("/corpus/") != std::string::npos;
      if (entry.is_regular_file() && !corpus && IsText(entry.path())) paths.push_back(entry.path());
    }
  }
  return ReadAll(std::move(paths));
}

std::vector<SourceFile> ReadDocuments() {
  const std::filesystem::path root(kRoot);
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (entry.path().extension() == ".md") paths.push_back(entry.path());
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") paths.push_back(entry.path());
  }
  return ReadAll(std::move(paths));
}

}  // namespace phub::tidy
