// Makes untrusted text safe for messages, logs and terminals.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

namespace phub {

// Replaces control characters (terminal escapes), characters that change the direction of text or
// begin a line, and bytes that are not valid UTF-8 (protobuf rejects them) with '?'. A result
// longer than bytes_max is cut between characters and ends in
// "...". REQUIRES: bytes_max >= 3.
std::string Printable(std::string_view text,
                      std::size_t bytes_max = std::numeric_limits<std::size_t>::max());

// The same for text of several lines: line ends stay, tabs become blanks.
std::string PrintableLines(std::string_view text);

// Names of jobs, keys, tenants and hosts come from peers and appear in messages, logs and
// terminals, so a name must have 1 to kNameBytesMax bytes, all of them printable: Printable()
// changes nothing.
inline constexpr std::size_t kNameBytesMax = 255;
bool IsName(std::string_view text);

// For a field in double quotes, on one line: writes '"' and '\\' with a backslash in front, and the
// bytes that Printable() replaces as \xNN (hexadecimal). No two texts have the same result.
std::string Escaped(std::string_view text);

}  // namespace phub
