// Checks the tree's comments and messages for plain English, and tests the extraction of prose.
#include "tests/tidy/prose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phub::tidy {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> Texts(const std::string& path, const std::string& text, Prose::Kind kind) {
  std::vector<std::string> texts;
  for (const Prose& prose : ProseOf({path, text})) {
    if (prose.kind == kind) texts.push_back(prose.text);
  }
  return texts;
}

TEST(TidyEnglish, TheTreeIsInPlainEnglish) {
  std::vector<SourceFile> files = ReadTree();
  for (SourceFile& document : ReadDocuments()) files.push_back(std::move(document));
  std::size_t pieces = 0;
  for (const SourceFile& file : files) {
    // The rules themselves, and their test texts.
    if (file.path.starts_with("tests/tidy/prose")) continue;
    pieces += ProseOf(file).size();
    for (const Finding& finding : CheckEnglish(file))
      ADD_FAILURE() << file.path << ":" << finding.line << ": " << finding.text;
  }
  EXPECT_GT(pieces, 10'000u);
}

TEST(TidyEnglish, CommentsOfSeveralLinesAreOne) {
  const std::string text =
      "// One that\n// goes on.\nint a;  // Another.\n\n// A third.\n\n// A fourth.\n";
  EXPECT_THAT(Texts("a.cc", text, Prose::Kind::kComment),
              ElementsAre("One that goes on.", "Another.", "A third.", "A fourth."));
  EXPECT_EQ(ProseOf({"a.cc", text})[1].line, 3u);
}

TEST(TidyEnglish, LiteralsThatFollowEachOtherAreOne) {
  EXPECT_THAT(
      Texts("a.cc",
            "#include \"a/b.h\"\nf(\"job {}: \"\n  \"it said \\\"no\\\"\\n\", 'x', \"y\");\n",
            Prose::Kind::kMessage),
      ElementsAre("job {}: it said \"no\"", "y"));
}

TEST(TidyEnglish, BackquotedTextIsNotProse) {
  EXPECT_THAT(Texts("a.md", "Say `he` or\n```\nhis\n```\n- an item\n", Prose::Kind::kComment),
              ElementsAre("Say `` or", "- an item"));
}

TEST(TidyEnglish, MessagesAreSentences) {
  const auto sentence = [](const std::string& text) {
    return IsSentence({1, Prose::Kind::kMessage, text});
  };
  EXPECT_TRUE(sentence("job {} has ended: {}"));
  EXPECT_FALSE(sentence("event=job_created tenant={} job=\"{}\""));
  EXPECT_FALSE(sentence("phub_jobs"));
}

TEST(TidyEnglish, MannerismsAreFound) {
  for (const char* text :
       {"Whoever has the key is everybody", "start it anew", "the daemon is told to stop",
        "this process is done with", "screening is 7, which is none", "there is no way back",
        "the user and his token", "the loop lets go of it", "the state that was brought",
        "the file has to be readable", "when it comes to an end", "a server takes in 4 MiB",
        "it lies beside the first", "Of those that wait, one runs", "two jobs, of which one ended",
        "such a one is refused", "null if there is none", "the former ends",
        "the plan is what it was asked for"})
    EXPECT_THAT(MannerismsIn(text), SizeIs(::testing::Ge(1u))) << text;
  for (const char* text : {"restart phubd", "she, the only rank of the job", "besides, it ends",
                           "the half of the chunk", "a goal", "the history of this"})
    EXPECT_THAT(MannerismsIn(text), IsEmpty()) << text;
}

TEST(TidyEnglish, LiteralsOfTestsMayQuote) {
  const std::string text = "// A test.\nEXPECT_EQ(said, \"start it anew\");\n";
  EXPECT_THAT(CheckEnglish({"tests/a_test.cc", text}), IsEmpty());
  EXPECT_THAT(CheckEnglish({"server/a.cc", text}), SizeIs(1));
  EXPECT_THAT(CheckEnglish({"tests/a_test.cc", "// start it anew\n"}), SizeIs(1));
}

}  // namespace
}  // namespace phub::tidy
