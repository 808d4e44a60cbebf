// "Did you mean": suggests the known word nearest to an unknown one. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace phub {

// The number of insertions, deletions, substitutions and swaps of neighbours that turn one word
// into the other.
std::size_t EditDistance(std::string_view from, std::string_view to);

// Returns the nearest of `known` if at most a third of its letters differ (one letter may always
// differ). Failing that, returns the only known word that contains `word`; otherwise empty.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> known);

// "; did you mean \"listen\"?", or "" if there is no suggestion.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> known);

}  // namespace phub
