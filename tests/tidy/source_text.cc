#include <cctype>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

bool IsIdentifier(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::size_t SkipBlank(std::string_view text, std::size_t at) {
  const auto end_or = [&](std::size_t found, std::size_t length) {
    return found == std::string_view::npos ? text.size() : found + length;
  };
  if (text.substr(at, 2) == "//") return end_or(text.find('\n', at), 0);
  if (text.substr(at, 2) == "/*") return end_or(text.find("*/", at + 2), 2);
  if (text.substr(at, 2) == "R\"" && (at == 0 || !IsIdentifier(text[at - 1]))) {
    const std::size_t open = text.find('(', at);
    if (open == std::string_view::npos) return at;
    const std::string close = ")" + std::string(text.substr(at + 2, open - at - 2)) + "\"";
    return end_or(text.find(close, open), close.size());
  }
  const char quote = text[at];
  // A quote after a digit or letter separates digits: 1'000.
  const bool literal = quote == '"' || (quote == '\'' && (at == 0 || !IsIdentifier(text[at - 1])));
  if (!literal) return at;
  for (std::size_t i = at + 1; i < text.size() && text[i] != '\n'; ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      return i + 1;
    }
  }
  return at;
}

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::string CodeOnly(std::string_view text) {
  std::string code(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = SkipBlank(text, at);
    if (end == at) {
      ++at;
      continue;
    }
    for (; at < end; ++at) {
      if (code[at] != '\n') code[at] = ' ';
    }
  }
  return code;
}

bool HasWord(std::string_view code, std::string_view word) {
  for (std::size_t at = code.find(word); at != std::string_view::npos;
       at = code.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool starts = at == 0 || !IsIdentifier(code[at - 1]);
    if (starts && (end == code.size() || !IsIdentifier(code[end]))) return true;
  }
  return false;
}

bool IsCpp(std::string_view path) { return path.ends_with(".h") || path.ends_with(".cc"); }

bool IsInFolder(std::string_view path, std::string_view folder) {
  return path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
}

}  // namespace phub::tidy
