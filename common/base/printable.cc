#include "common/base/printable.h"

#include <algorithm>
#include <cstdint>

namespace phub {
namespace {

constexpr std::string_view kCut = "...";

// Line separators and characters that change the direction of the text around them.
bool IsFormatControl(std::uint32_t code) {
  return code == 0x61C || (code >= 0x200E && code <= 0x200F) ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;
}

// The size of the first character of `text`, which is not empty. 0 if it is a control character or
// not valid UTF-8; the caller then replaces one byte.
std::size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes > text.size()) return 0;
  std::uint32_t code = first & (0xFFu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};  // from 0x80 on: C1 controls
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool is_valid = code >= kLeast[bytes] && code <= 0x10FFFF && !is_surrogate;
  return is_valid && !IsFormatControl(code) ? bytes : 0;
}

}  // namespace

std::string Printable(std::string_view text, std::size_t bytes_max) {
  std::string printable;
  std::size_t end = 0;  // after the last character that leaves room for kCut
  while (!text.empty()) {
    const std::size_t bytes = CharacterBytes(text);
    const std::string_view character = bytes == 0 ? "?" : text.substr(0, bytes);
    if (printable.size() + character.size() > bytes_max) {
      printable.resize(end);
      return printable.append(kCut);
    }
    printable += character;
    if (printable.size() + kCut.size() <= bytes_max) end = printable.size();
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return printable;
}

std::string PrintableLines(std::string_view text) {
  std::string lines;
  lines.reserve(text.size());
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    lines += Printable(text.substr(0, end));
    if (end < text.size()) lines += text[end] == '\t' ? ' ' : '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool IsName(std::string_view text) {
  return !text.empty() && text.size() <= kNameBytesMax && Printable(text) == text;
}

std::string Escaped(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const std::size_t bytes = CharacterBytes(text);
    if (bytes == 0) {
      const auto byte = static_cast<unsigned char>(text.front());
      escaped += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      if (text.front() == '"' || text.front() == '\\') escaped += '\\';
      escaped += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return escaped;
}

}  // namespace phub
