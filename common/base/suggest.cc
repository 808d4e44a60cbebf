#include "common/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <vector>

namespace phub {
namespace {

// Ignores case, '-' and '_': they are often mistyped.
std::string Normalize(std::string_view word) {
  std::string normal;
  for (const char character : word) {
    if (character == '-' || character == '_') continue;
    normal += static_cast<char>(std::tolower(static_cast<unsigned char>(character)));
  }
  return normal;
}

}  // namespace

std::size_t EditDistance(std::string_view from, std::string_view to) {
  // Three rows of the optimal string alignment table: before previous, previous, current.
  std::vector<std::size_t> before(to.size() + 1), previous(to.size() + 1), current(to.size() + 1);
  for (std::size_t j = 0; j <= to.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= from.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= to.size(); ++j) {
      const std::size_t change = from[i - 1] == to[j - 1] ? 0 : 1;
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, previous[j - 1] + change});
      if (i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1])
        current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[to.size()];
}

std::string_view Nearest(std::string_view word, std::span<const std::string_view> known) {
  const std::string wanted = Normalize(word);
  if (wanted.empty()) return {};
  std::string_view nearest;
  std::size_t nearest_distance = SIZE_MAX;
  std::vector<std::string_view> containing;
  for (const std::string_view candidate : known) {
    const std::string normal = Normalize(candidate);
    const std::size_t distance = EditDistance(wanted, normal);
    const std::size_t allowed = std::max<std::size_t>(1, normal.size() / 3);
    if (distance <= allowed && distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
    if (normal.find(wanted) != std::string::npos) containing.push_back(candidate);
  }
  if (!nearest.empty()) return nearest;
  constexpr std::size_t kLettersMin = 3;  // most words contain some shorter word
  if (containing.size() == 1 && wanted.size() >= kLettersMin) return containing.front();
  return {};
}

std::string DidYouMean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view nearest = Nearest(word, known);
  return nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest);
}

}  // namespace phub
