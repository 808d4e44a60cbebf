// list-messages [--comments] FOLDER...: prints every message of the C++ files in these folders, or
// their comments, one per line with file and line number.
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/tidy/prose.h"

int main(int argc, char** argv) {
  using phub::tidy::Prose;
  const bool comments = argc > 1 && std::strcmp(argv[1], "--comments") == 0;
  const int first = comments ? 2 : 1;
  if (first >= argc || argv[first][0] == '-') {
    std::fputs("usage: list-messages [--comments] FOLDER... (of the tree, for example server)\n",
               stderr);
    return 2;
  }
  std::size_t count = 0;
  for (const phub::tidy::SourceFile& file : phub::tidy::ReadTree()) {
    bool asked = false;
    for (int i = first; i < argc; ++i) asked |= phub::tidy::IsInFolder(file.path, argv[i]);
    if (!asked || !phub::tidy::IsCpp(file.path)) continue;
    for (const Prose& prose : phub::tidy::ProseOf(file)) {
      if (comments ? prose.kind != Prose::Kind::kComment : !phub::tidy::IsSentence(prose)) continue;
      std::printf("%s:%zu: %s\n", file.path.c_str(), prose.line, prose.text.c_str());
      ++count;
    }
  }
  if (count > 0) return 0;
  std::fputs("list-messages: no message in these folders\n", stderr);
  return 1;
}
