// What somebody else wrote, on its way into messages, logs and terminals.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace phub {

// With '?' for control characters, which could play tricks with a terminal, and for bytes that are
// not UTF-8, which no message may carry. If that is longer than bytes_max, it ends, after a whole
// character, in "...". bytes_max: at least 3.
std::string Printable(std::string_view text,
                      std::size_t bytes_max = std::numeric_limits<std::size_t>::max());

}  // namespace phub
