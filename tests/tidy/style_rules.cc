#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

// In two parts, so that this file does not violate its own rule.
const std::array<std::string, 3> kUnfinished = {std::string("TO") + "DO", std::string("FIX") + "ME",
                                                std::string("XX") + "X"};

// The core loop and its stages, which run on a core that owns chunks.
constexpr std::string_view kCoreLoopFolder = "server/core";

std::size_t Columns(std::string_view line) {  // UTF-8: continuation bytes take no column
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

void CheckLines(const SourceFile& file, const std::vector<std::string_view>& lines,
                Findings& findings) {
  // Documents may be long and have long tables. Lists of sources in CMake may be wide.
  const bool document = file.path.ends_with(".md");
  const bool wide =
      document || file.path.ends_with("CMakeLists.txt") || file.path.ends_with(".cmake");
  if (!document && lines.size() > kLinesMax)
    findings.push_back({0, "lines", std::to_string(lines.size()) + " lines, at most 400"});
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t columns = Columns(lines[i]);
    if (!wide && columns > kColumnsMax)
      findings.push_back({i + 1, "columns", std::to_string(columns) + " columns, at most 100"});
    for (const std::string& mark : kUnfinished) {
      if (HasWord(lines[i], mark)) findings.push_back({i + 1, "unfinished", "unfinished: " + mark});
    }
  }
}

// A definition starts in column 0 with a line that is neither a type nor a namespace, and ends with
// a '}' in column 0, as this tree is formatted.
void CheckFunctions(const std::vector<std::string_view>& code, Findings& findings) {
  static const std::regex kOther(
      "^(class|struct|enum|union|namespace|extern|template|using|#|\\})");
  std::size_t start = 0;  // line, from 1; 0: outside
  bool function = false;
  bool has_body = false;
  for (std::size_t i = 0; i < code.size(); ++i) {
    if (code[i].empty()) continue;
    if (code[i][0] == '}') {
      const std::size_t length = i + 1 - start + 1;
      if (function && start != 0 && length > kFunctionLinesMax)
        findings.push_back({start, "function", std::to_string(length) + " lines, at most 70"});
      start = 0;
    } else if (code[i][0] != ' ' && start == 0) {
      const std::string line(code[i]);
      function = !std::regex_search(line, kOther) && line.find('(') != std::string::npos;
      // A declaration or a body on its own line ends where it starts.
      const bool ends = line.find_last_of(";}") != std::string::npos &&
                        line.find_last_not_of(" ") == line.find_last_of(";}");
      start = function && !ends ? i + 1 : 0;
      has_body = line.find('{') != std::string::npos;
    } else if (start != 0 && !has_body) {
      // The rest of a declaration of several lines, or of a function's head.
      has_body = code[i].find('{') != std::string_view::npos;
      if (!has_body && code[i].ends_with(';')) start = 0;
    }
  }
}

// The names of the variables and members that are declared as unordered containers.
std::set<std::string> UnorderedNames(const std::string& code) {
  static const std::regex kDeclared(
      "(?:unordered_(?:multi)?(?:map|set)|flat_hash_(?:map|set)|node_hash_(?:map|set))<"
      "[^;()]*>\\s+(\\w+)");
  std::set<std::string> names;
  for (std::sregex_iterator it(code.begin(), code.end(), kDeclared), end; it != end; ++it)
    names.insert((*it)[1]);
  return names;
}

bool NamesUnordered(std::string_view line) {
  for (const std::string_view name :
       {"unordered_map", "unordered_set", "unordered_multimap", "unordered_multiset",
        "flat_hash_map", "flat_hash_set", "node_hash_map", "node_hash_set"}) {
    if (HasWord(line, name)) return true;
  }
  return false;
}

}  // namespace

Findings CheckForm(const SourceFile& file) {
  Findings findings;
  const std::vector<std::string_view> lines = Lines(file.text);
  CheckLines(file, lines, findings);
  if (!IsCpp(file.path)) return findings;
  const std::string code = CodeOnly(file.text);
  const std::vector<std::string_view> code_lines = Lines(code);
  for (std::size_t i = 0; i < code_lines.size(); ++i) {
    if (lines[i].find('\t') != std::string_view::npos) findings.push_back({i + 1, "tabs", "a tab"});
    if (code_lines[i].find("TEST") != std::string_view::npos &&
        code_lines[i].find(", DISABLED_") != std::string_view::npos)
      findings.push_back({i + 1, "unfinished", "a disabled test"});
    if (lines[i].starts_with("#if 0"))
      findings.push_back({i + 1, "dead", "code in #if 0: delete it, git remembers"});
  }
  const bool once =
      std::find(code_lines.begin(), code_lines.end(), "#pragma once") != code_lines.end();
  // Highway includes "-inl.h" headers once per target, with a guard of its own.
  if (file.path.ends_with(".h") && !file.path.ends_with("-inl.h") && !once)
    findings.push_back({0, "once", "a header without #pragma once"});
  if (!IsInFolder(file.path, "tests")) CheckFunctions(code_lines, findings);
  return findings;
}

Findings CheckDeterminism(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path)) return findings;
  static const std::regex kDistribution("std::\\w+_distribution\\b");
  const std::string code = CodeOnly(file.text);
  const std::vector<std::string_view> lines = Lines(code);
  const bool product = IsInFolder(file.path, "server") || IsInFolder(file.path, "common") ||
                       IsInFolder(file.path, "aggregator");
  const bool core_loop = IsInFolder(file.path, kCoreLoopFolder);
  const std::set<std::string> unordered = product ? UnorderedNames(code) : std::set<std::string>{};
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string line(lines[i]);
    if (std::regex_search(line, kDistribution))
      findings.push_back({i + 1, "distribution", "std:: distributions differ between libraries"});
    if (!product) continue;
    if (core_loop && NamesUnordered(line))
      findings.push_back({i + 1, "unordered", "an unordered container in the core loop"});
    if (HasWord(line, "throw")) findings.push_back({i + 1, "throw", "phub never throws"});
    for (const std::string& name : unordered) {
      const std::regex iterates("(for\\s*\\(.*:\\s*\\*?(this->)?" + name + "\\s*\\))|(\\b" + name +
                                "(\\.|->)c?begin\\s*\\()");
      if (std::regex_search(line, iterates))
        findings.push_back({i + 1, "unordered", "iterates over unordered " + name});
    }
  }
  return findings;
}

// A definition starts in column 0, as formatted here; its parameters may take several lines.
std::vector<ClassSize> CountMethods(const std::vector<SourceFile>& files) {
  static const std::regex kDefinition(
      "\\n(?=[A-Za-z])[^;{}=#]*?\\b((?:\\w+::)*\\w+)::~?\\w+\\([^;{}]*\\)[^;{}]*\\{");
  std::map<std::string, std::size_t> methods;
  for (const SourceFile& file : files) {
    const std::string_view top = std::string_view(file.path).substr(0, file.path.find('/'));
    if (!file.path.ends_with(".cc") ||
        (top != "server" && top != "common" && top != "client" && top != "aggregator")) {
      continue;
    }
    const std::string code = CodeOnly(file.text);
    for (std::sregex_iterator it(code.begin(), code.end(), kDefinition), end; it != end; ++it)
      ++methods[std::string(top) + ": " + (*it)[1].str()];
  }
  std::vector<ClassSize> sizes;
  for (const auto& [name, count] : methods) sizes.push_back({name, count});
  return sizes;
}

}  // namespace phub::tidy
