#include "common/base/printable.h"

#include <gtest/gtest.h>

namespace phub {
namespace {

TEST(Printable, LeavesTextAsItIs) {
  EXPECT_EQ(Printable(""), "");
  EXPECT_EQ(Printable("/data/résumé, 第1回, 🙂"), "/data/résumé, 第1回, 🙂");
}

TEST(Printable, ReplacesControlCharacters) {
  EXPECT_EQ(Printable("a\x1b[2J\n\r\t\x7f"
                      "b"),
            "a?[2J????b");
  EXPECT_EQ(Printable(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(Printable("a\xc2\x9b"
                      "2J"),
            "a??2J")
      << "the one-character form of ESC [";
  EXPECT_EQ(Printable("\xc2\xa0"), "\xc2\xa0");
}

TEST(Printable, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(Printable("\xff"
                      "a\xc3"),
            "?a?");
  EXPECT_EQ(Printable("\xc0\xaf"), "??") << "'/', longer than it need be";
  EXPECT_EQ(Printable("\xe0\x80\xaf"), "???");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "???") << "half of a pair";
  EXPECT_EQ(Printable("\xf4\x90\x80\x80"), "????") << "beyond the last";
  EXPECT_EQ(Printable("\xc3"
                      "a"),
            "?a")
      << "the next character is not swallowed";
  EXPECT_EQ(Printable("\xe2\x82"), "??");
}

TEST(Printable, IsCutAfterAWholeCharacter) {
  EXPECT_EQ(Printable("abcdef", 6), "abcdef");
  EXPECT_EQ(Printable("abcdefg", 6), "abc...");
  EXPECT_EQ(Printable("äöüß", 8), "äöüß");
  EXPECT_EQ(Printable("äöüß", 7), "äö...");
  EXPECT_EQ(Printable("äöüß", 6), "ä...");
  EXPECT_EQ(Printable("äöüß", 3), "...");
  EXPECT_EQ(Printable(std::string(10'000, '\n'), 1024).size(), 1024u);
}

}  // namespace
}  // namespace phub
