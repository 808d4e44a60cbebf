#include "common/view/view_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "common/base/secret_file.h"
#include "common/base/status_text.h"
#include "common/view/view_toml.h"

namespace phub::view {

absl::StatusOr<View> ReadViewFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadPublicFile(path);
  if (!text.ok()) return text.status();
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto read = [&](const std::string& name) { return ReadPublicFile(folder / name); };
  auto view = ParseViewToml(*text, read);
  if (view.ok()) return view;
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, MessageOf(view.status())));
}

}  // namespace phub::view
