// The text that people read in a file: comments, and messages in string literals. The style rules
// search it for mannerisms (prose_rules.cc), and list-messages prints the messages, so that they
// can be reviewed together. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/tidy/rules.h"

namespace phub::tidy {

struct Prose {
  enum class Kind : std::uint8_t { kComment, kMessage };

  std::size_t line = 0;  // counted from 1: where it begins
  Kind kind = Kind::kComment;
  std::string text;  // lines joined by single blanks; escapes such as \n are blanks, too
};

// In C++ and .proto files, consecutive comment lines are one comment, and literals with only blanks
// between them are one message; names of included files are left out. In any other file, each
// paragraph is a comment, without text in backquotes or fenced blocks.
std::vector<Prose> ProseOf(const SourceFile& file);

// True for a message in words: at least three words with a blank between them. Names, keys of
// events and formats are left out.
bool IsSentence(const Prose& prose);

// The mannerisms in a text, from the closed list in prose_rules.cc: each with the text found and
// its replacement.
std::vector<std::string> MannerismsIn(const std::string& text);

// One finding, rule "english", for each mannerism in a file's prose. In tests and the bench, only
// comments are checked, since their literals also quote other texts.
Findings CheckEnglish(const SourceFile& file);

}  // namespace phub::tidy
