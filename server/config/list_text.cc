#include "server/config/list_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace phub::server {
namespace {

std::string_view Trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SplitList(std::string_view text) {
  std::vector<std::string> entries;
  if (Trimmed(text).empty()) return entries;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string entry(Trimmed(text.substr(begin, end - begin)));
    if (entry.empty()) return absl::InvalidArgumentError("has an empty entry");
    if (std::ranges::find(entries, entry) != entries.end()) {
      return absl::InvalidArgumentError(fmt::format("has the entry \"{}\" twice", entry));
    }
    entries.push_back(entry);
    begin = end + 1;
  }
  return entries;
}

}  // namespace phub::server
