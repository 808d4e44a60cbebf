// The documents about security name the tests that hold their claims. Each named test exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <string>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

std::set<std::string> NamesOfTests() {
  static const std::regex kTest(R"(\bTEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\))");
  std::set<std::string> names;
  for (const SourceFile& file : ReadTree()) {
    if (!file.path.starts_with("tests/")) continue;
    for (std::sregex_iterator found(file.text.begin(), file.text.end(), kTest), end; found != end;
         ++found)
      names.insert((*found)[1].str() + "." + (*found)[2].str());
  }
  return names;
}

TEST(TidyClaims, DocumentsAboutSecurityNameTestsThatExist) {
  static const std::regex kName(R"(`([A-Z][A-Za-z]+\.[A-Z]\w+)`)");
  const std::set<std::string> tests = NamesOfTests();
  ASSERT_GT(tests.size(), 1000u);
  std::size_t named = 0;
  for (const SourceFile& document : ReadDocuments()) {
    if (document.path != "SECURITY.md" && document.path != "docs/tenants.md") continue;
    for (std::sregex_iterator found(document.text.begin(), document.text.end(), kName), end;
         found != end; ++found, ++named)
      EXPECT_TRUE(tests.contains((*found)[1].str())) << document.path << ": " << (*found)[1].str();
  }
  EXPECT_GT(named, 30u);
}

}  // namespace
}  // namespace phub::tidy
