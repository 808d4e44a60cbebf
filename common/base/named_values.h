// Lists of settings with their values as text, and where two of them differ, for errors that show
// the values of both sides. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace phub {

struct NamedValue {
  std::string name;
  std::string value;
};
using NamedValues = std::vector<NamedValue>;

// "chunk_bytes is 4096 at rack 1 and 131072 at rack 0; ...": the first few settings that differ, in
// the order of `ones`. Empty if none does. Names and values may come from a peer: the text is
// printable and its length is limited.
std::string DescribeDifferences(const NamedValues& ones, std::string_view one,
                                const NamedValues& others, std::string_view other);

}  // namespace phub
