// The rules that a compiler does not check: which files may include which, and the house style.
// Pure functions from a file's path and text to findings, so that each rule can be tested on text
// that violates it (tidy_test.cc) as well as on the tree.
//
// Paths are relative to the root, with '/'.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace phub::tidy {

struct Finding {
  std::size_t line = 0;  // counted from 1; 0: the whole file
  std::string rule;      // one word: "layers", "columns", ...
  std::string text;      // the problem
};
using Findings = std::vector<Finding>;

struct SourceFile {
  std::string path;
  std::string text;
};

// --- tree.cc ---

// The text files of the tree, ordered by path, without corpora, build folders, and the files at the
// root and in docs, which ReadDocuments() returns.
std::vector<SourceFile> ReadTree();
std::vector<SourceFile> ReadDocuments();

// --- source_text.cc ---

// The end of the comment or literal that starts at `at` (one past it), or `at` if none does.
std::size_t SkipBlank(std::string_view text, std::size_t at);

// The lines of a text, without their ends.
std::vector<std::string_view> Lines(std::string_view text);
// C++ text with comments and the contents of literals replaced by blanks. Line numbers do not
// change.
std::string CodeOnly(std::string_view text);
// True if the code contains `word`, not as part of a longer identifier.
bool HasWord(std::string_view code, std::string_view word);
bool IsCpp(std::string_view path);                                // .h or .cc
bool IsInFolder(std::string_view path, std::string_view folder);  // at any depth

// --- layer_rules.cc: design rules on #include ---

// base <- wire, simd, plan <- transport <- {server, client}; base <- checkpoint <- client; no
// folder includes tests or examples. Stages of the core loop do not include each other; its folders
// loop and rounds may include them. protobuf and gRPC stop at aggregator, common/tls/grpc,
// server/control, server/etcd, client/session, client/cli and tests; InfiniBand at
// common/transport/verbs; intrinsics nowhere. client/include includes itself and the standard
// library.
Findings CheckIncludes(const SourceFile& file);

// --- message_rules.cc ---

// Over all files: a file that names a generated message (v1::PeerMessage) includes its header,
// itself or through other files. Release builds would not notice: they compile files together.
std::vector<std::string> CheckMessagesAreIncluded(const std::vector<SourceFile>& files);

// --- style_rules.cc ---

// At most 400 lines, 100 columns, no tabs in C++, no marks of unfinished work, no code in #if 0,
// #pragma once in headers; functions of at most 70 lines outside tests.
Findings CheckForm(const SourceFile& file);
// Code in server/ and common/ that makes runs differ between machines or seeds, or breaks the error
// rules: library distributions (anywhere), unordered containers in the core loop and iteration over
// them elsewhere, throw.
Findings CheckDeterminism(const SourceFile& file);

// Over all files of the product: classes have at most 40 methods defined out of line.
struct ClassSize {
  std::string name;  // "server: Control"
  std::size_t methods = 0;
};
std::vector<ClassSize> CountMethods(const std::vector<SourceFile>& files);

inline constexpr std::size_t kMethodsMax = 40;
inline constexpr std::size_t kLinesMax = 400;
inline constexpr std::size_t kColumnsMax = 100;
inline constexpr std::size_t kFunctionLinesMax = 70;

}  // namespace phub::tidy
