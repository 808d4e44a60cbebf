#include "tests/tidy/prose.h"

#include <algorithm>
#include <cctype>

namespace phub::tidy {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool IsLetter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

void AppendWord(std::string& text, std::string_view word) {
  if (word.empty()) return;
  if (!text.empty() && text.back() != ' ') text += ' ';
  text += word;
}

// Replaces each run of blanks by one.
std::string Collapse(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto begin = std::find_if_not(text.begin(), text.end(), IsSpace);
    const auto end = std::find_if(begin, text.end(), IsSpace);
    AppendWord(result, std::string_view(begin, end));
    text.remove_prefix(static_cast<std::size_t>(end - text.begin()));
  }
  return result;
}

std::string WithoutBackquoted(std::string_view text) {
  std::string result;
  bool quoted = false;
  for (const char c : text) {
    if (c == '`') {
      quoted = !quoted;
      if (quoted) result += '`';
    }
    if (!quoted) result += c;
  }
  return result;
}

// The content of a literal, with blanks in place of escapes.
std::string Unquote(std::string_view literal) {
  const std::size_t open = literal.find(literal.starts_with('R') ? '(' : '"');
  std::string inside(literal.substr(open + 1, literal.size() - open - 2));
  if (literal.starts_with('R')) return inside.substr(0, inside.rfind(')'));
  for (std::size_t at = inside.find('\\'); at != std::string::npos && at + 1 < inside.size();
       at = inside.find('\\', at + 1)) {
    const char escaped = inside[at + 1];
    inside.replace(at, 2, escaped == '"' || escaped == '\\' ? std::string(1, escaped) : " ");
  }
  return inside;
}

std::string Uncomment(std::string_view comment) {
  std::string text;
  for (std::string_view line : Lines(comment)) {
    while (!line.empty() && (IsSpace(line.front()) || line.front() == '/' || line.front() == '*'))
      line.remove_prefix(1);
    AppendWord(text, line);
  }
  return text;
}

class CppProse {
 public:
  explicit CppProse(std::string_view text) : text_(text), includes_(text.starts_with("#include")) {}

  std::vector<Prose> Take() {
    for (std::size_t at = 0; at < text_.size();) {
      const std::size_t end = SkipBlank(text_, at);
      if (end == at) {
        if (!IsSpace(text_[at])) joins_ = false;
        if (text_[at] == '\n') NextLine(at);
        ++at;
        continue;
      }
      Add(text_.substr(at, end - at));
      line_ += static_cast<std::size_t>(std::count(&text_[at], &text_[at] + (end - at), '\n'));
      at = end;
    }
    for (Prose& prose : found_) prose.text = Collapse(WithoutBackquoted(prose.text));
    return std::move(found_);
  }

 private:
  // Two comments count as one if the second follows on the next line. A blank line ends both kinds.
  void NextLine(std::size_t at) {
    ++line_;
    const std::string_view rest = text_.substr(at + 1);
    if (rest.substr(0, rest.find('\n')).find_first_not_of(" \t") == std::string_view::npos)
      joins_ = false;
    includes_ = rest.starts_with("#include");
  }
  void Add(std::string_view piece) {
    if (piece.front() == '\'' || includes_) return;
    const bool comment = piece.front() == '/';
    const Prose::Kind kind = comment ? Prose::Kind::kComment : Prose::Kind::kMessage;
    const std::string text = comment ? Uncomment(piece) : Unquote(piece);
    if (joins_ && !found_.empty() && found_.back().kind == kind) {
      found_.back().text += (comment ? " " : "") + text;
    } else {
      found_.push_back({line_, kind, text});
    }
    joins_ = true;
  }

  std::string_view text_;
  std::size_t line_ = 1;
  bool joins_ = false;  // only blanks since the last piece
  bool includes_;       // on a line with #include
  std::vector<Prose> found_;
};

std::vector<Prose> Paragraphs(std::string_view text) {
  std::vector<Prose> found;
  bool fenced = false, joins = false;
  std::size_t number = 0;
  for (const std::string_view line : Lines(text)) {
    ++number;
    const std::string words = Collapse(line);
    if (words.starts_with("```")) fenced = !fenced;
    if (fenced || words.empty() || words.starts_with("```")) {
      joins = false;
      continue;
    }
    const bool begins = words.starts_with("- ") || words.starts_with('|') || words.starts_with('#');
    if (!joins || begins) found.push_back({number, Prose::Kind::kComment, {}});
    AppendWord(found.back().text, words);
    joins = true;
  }
  for (Prose& prose : found) prose.text = WithoutBackquoted(prose.text);
  return found;
}

}  // namespace

std::vector<Prose> ProseOf(const SourceFile& file) {
  if (IsCpp(file.path) || file.path.ends_with(".proto")) return CppProse(file.text).Take();
  return Paragraphs(file.text);
}

bool IsSentence(const Prose& prose) {
  if (prose.kind != Prose::Kind::kMessage) return false;
  std::size_t words = 0;
  std::string_view rest = prose.text;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    const bool plain =
        word.size() > 1 && word.find_first_of("={}_<>[]\\") == std::string_view::npos;
    if (plain && std::count_if(word.begin(), word.end(), IsLetter) > 1) ++words;
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return words >= 3;
}

}  // namespace phub::tidy
