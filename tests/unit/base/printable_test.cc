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

TEST(Printable, ReplacesCharactersThatChangeTheDirectionOfText) {
  EXPECT_EQ(Printable("\u202egnp.exe"), "???gnp.exe");
  EXPECT_EQ(Printable("a\u2028b\u2066c\ufeff"), "a???b???c???");
  EXPECT_EQ(Printable("\u061c"), "??");
}

TEST(Escaped, LeavesTextAsItIs) {
  EXPECT_EQ(Escaped(""), "");
  EXPECT_EQ(Escaped("résumé, 第1回, 🙂 [a] {b} 'c'"), "résumé, 第1回, 🙂 [a] {b} 'c'");
}

TEST(Escaped, CannotEndAQuotedFieldOrALine) {
  EXPECT_EQ(Escaped("a\" rank=\"0"), "a\\\" rank=\\\"0");
  EXPECT_EQ(Escaped("a\\"), "a\\\\");
  EXPECT_EQ(Escaped("a\nb\x1b[2J"), "a\\x0ab\\x1b[2J");
  EXPECT_EQ(Escaped("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J");
  EXPECT_EQ(Escaped("\u202e"), "\\xe2\\x80\\xae");
  EXPECT_EQ(Escaped(std::string_view("\0\xff", 2)), "\\x00\\xff");
  EXPECT_NE(Escaped("\n"), Escaped("\\x0a")) << "no two texts have the same result";
}

}  // namespace
}  // namespace phub
