#include <algorithm>
#include <cctype>
#include <regex>

#include "tests/tidy/prose.h"

namespace phub::tidy {
namespace {

struct Mannerism {
  const char* part;  // in lower case; only text that contains it is searched for the pattern
  const char* pattern;
  const char* instead;
};

// A closed list of phrases that confused readers. Words that are also good English elsewhere are
// not in it.
constexpr Mannerism kMannerisms[] = {
    {"ever", R"(\bwho(so)?ever\b)", "name who"},
    {"whatever", R"((^|[.;:] )whatever\b)", "name what"},
    {"anew", R"(\banew\b)", "again"},
    {" told", R"(\b(is|are|was|were|been|be) told\b)", "is notified, or say who sends what"},
    {"done with", R"(\b(is|are|was|were) done with\b)", "no longer needs"},
    {" none", R"(\b(which|that|it|there) (is|are|was) none\b)",
     "is not valid, or say what is missing"},
    {"way back", R"(\bno way back\b)", "cannot be undone"},
    {"h", R"(\b(he|him|his)\b)", "they, the user"},
    {" go", R"(\blets? go\b)", "releases"},
    {"brought", R"(\bbrought\b)", "loaded, caused"},
    {" to be", R"(\b(has|have|had) to be\b)", "must be"},
    {"com", R"(\bcom(es|e|ing) to (a|an|the|its|one|no) (bound|limit|end|place|daemon|loop)\b)",
     "reaches"},
    {"takes in", R"(\btakes in\b)", "receives"},
    {"beside", R"(\bbeside\b)", "next to, besides"},
    {"of ", R"((^|[.;:] )of (those|these|what|the|a|an|each|all|two|several|which)\b)",
     "begin with the subject"},
    {"of which", R"(\bof which\b)", "two sentences"},
    {"such a", R"(\bsuch an? one\b)", "name it"},
    {"the ", R"(\bthe (former|latter)\b)", "name it"},
    {"is what", R"(\bis what (it|they|there|we)\b)", "say it directly"},
};

}  // namespace

std::vector<std::string> MannerismsIn(const std::string& text) {
  static const std::vector<std::pair<std::regex, const Mannerism*>> kCompiled = [] {
    std::vector<std::pair<std::regex, const Mannerism*>> all;
    for (const Mannerism& mannerism : kMannerisms)
      all.emplace_back(std::regex(mannerism.pattern, std::regex::optimize), &mannerism);
    return all;
  }();
  std::vector<std::string> found;
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& [pattern, mannerism] : kCompiled) {
    if (lower.find(mannerism->part) == std::string::npos) continue;
    std::smatch match;
    if (std::regex_search(lower, match, pattern))
      found.push_back("\"" + match.str() + "\": rather " + mannerism->instead);
  }
  return found;
}

Findings CheckEnglish(const SourceFile& file) {
  const bool only_comments = IsInFolder(file.path, "tests") || IsInFolder(file.path, "bench");
  Findings findings;
  for (const Prose& prose : ProseOf(file)) {
    if (only_comments && prose.kind == Prose::Kind::kMessage) continue;
    for (const std::string& mannerism : MannerismsIn(prose.text))
      findings.push_back({prose.line, "english", mannerism});
  }
  return findings;
}

}  // namespace phub::tidy
