#include "common/base/man_page.h"

#include <fmt/format.h>

#include <algorithm>

namespace phub {
namespace {

// Escapes backslashes, minus signs, and lines that roff would read as requests.
std::string Escaped(std::string_view text) {
  std::string escaped;
  bool at_line_start = true;
  for (const char character : text) {
    if (at_line_start && (character == '.' || character == '\'')) escaped += "\\&";
    if (character == '\\') {
      escaped += "\\e";
    } else if (character == '-') {
      escaped += "\\-";
    } else {
      escaped += character;
    }
    at_line_start = character == '\n';
  }
  return escaped;
}

}  // namespace

ManPage::ManPage(std::string_view name, int section, std::string_view source,
                 std::string_view description) {
  std::string capitals(name);
  std::transform(capitals.begin(), capitals.end(), capitals.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
  text_ = fmt::format(".TH \"{}\" {} \"\" \"{}\" \"phub\"\n", Escaped(capitals), section,
                      Escaped(source));
  Section("NAME");
  text_ += fmt::format("{} \\- {}\n", Escaped(name), Escaped(description));
}

void ManPage::Request(std::string_view name, std::string_view argument) {
  text_ += fmt::format(".{} \"{}\"\n", name, Escaped(argument));
}

void ManPage::Section(std::string_view title) { Request("SH", title); }
void ManPage::Subsection(std::string_view title) { Request("SS", title); }

void ManPage::Paragraph(std::string_view text) { text_ += fmt::format(".PP\n{}\n", Escaped(text)); }

void ManPage::Item(std::string_view tag, std::string_view text) {
  text_ += fmt::format(".TP\n\\fB{}\\fR\n{}\n", Escaped(tag), Escaped(text));
}

void ManPage::Literal(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  text_ += fmt::format(".PP\n.nf\n{}\n.fi\n", Escaped(text));
}

}  // namespace phub
