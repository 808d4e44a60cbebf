// What people read in a file: comments, and the messages in string literals. The style rules look
// for mannerisms in it (prose_rules.cc), and list-messages prints the messages, so that somebody
// can read all of them in one go. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/tidy/rules.h"

namespace phub::tidy {

struct Prose {
  enum class Kind : std::uint8_t { kComment, kMessage };

  std::size_t line = 0;  // from 1: where it begins
  Kind kind = Kind::kComment;
  std::string text;  // lines joined by single blanks; escapes such as \n are blanks, too
};

// C++ and .proto files: lines of comments that follow each other are one comment, and literals with
// nothing but blanks between them are one message; names of included files are left out. Any other
// file: each paragraph is a comment, without what stands in backquotes or fenced blocks.
std::vector<Prose> ProseOf(const SourceFile& file);

// A message in words: at least three words with a blank between them. What is left out are names,
// keys of events and formats.
bool IsSentence(const Prose& prose);

// The mannerisms that a piece of text shows, from the closed list in prose_rules.cc: for each what
// was found, and what to write in its place.
std::vector<std::string> MannerismsIn(const std::string& text);

// One finding, rule "english", for each mannerism of a file's prose. Of tests and the bench only
// comments are looked at: their literals also quote what others wrote.
Findings CheckEnglish(const SourceFile& file);

}  // namespace phub::tidy
