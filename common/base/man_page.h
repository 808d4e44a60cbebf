// Writes a manual page in roff (man(7)). Special characters in text are escaped. One thread.
#pragma once

#include <string>
#include <string_view>

namespace phub {

class ManPage {
 public:
  // ManPage("phubd", 8, "phub 0.1.0", "parameter server daemon")
  ManPage(std::string_view name, int section, std::string_view source,
          std::string_view description);

  void Section(std::string_view title);  // "OPTIONS"
  void Subsection(std::string_view title);
  void Paragraph(std::string_view text);                   // wrapped to the reader's width
  void Item(std::string_view tag, std::string_view text);  // a term and its description
  void Literal(std::string_view text);                     // not wrapped
  const std::string& text() const { return text_; }

 private:
  void Request(std::string_view name, std::string_view argument);
  std::string text_;
};

}  // namespace phub
