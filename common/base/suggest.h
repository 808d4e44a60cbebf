// "Did you mean": the nearest known word to one that is not known. Pure; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace phub {

// Insertions, deletions, substitutions and swaps of neighbours that turn one word into the other.
std::size_t EditDistance(std::string_view from, std::string_view to);

// The nearest of `known` if it is near enough to be meant (a third of its letters may differ, at
// least 1), else the only one that begins with `word` or has it inside; else empty.
std::string_view Nearest(std::string_view word, std::span<const std::string_view> known);

// "; did you mean \"listen\"?", or "" when nothing is near.
std::string DidYouMean(std::string_view word, std::span<const std::string_view> known);

}  // namespace phub
