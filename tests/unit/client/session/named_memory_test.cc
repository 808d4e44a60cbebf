#include "client/session/named_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

namespace phub::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kBytes = 8192;

// By SIGSEGV, or with an error by a sanitizer.
bool Ended(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

volatile char* ReadOnly() {
  void* const memory = mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return static_cast<volatile char*>(memory);
}

const void* At(volatile char* memory) { return const_cast<const char*>(memory); }

TEST(NamedMemoryDeathTest, AWriteNamesTheMemory) {
  volatile char* const memory = ReadOnly();
  ASSERT_TRUE(NameMemory(At(memory), 4096, "parameter fc1.weight"));
  ASSERT_TRUE(NameMemory(At(memory + 4096), 4096, "parameter fc2.weight"));
  EXPECT_EXIT(memory[5000] = 1, Ended,
              "wrote to parameter fc2.weight, which is in memory that it shares");
}

TEST(NamedMemoryDeathTest, OtherFaultsAreNotExplained) {
  volatile char* const memory = ReadOnly();
  ASSERT_TRUE(NameMemory(At(memory), kBytes, "parameter fc1.weight"));
  ASSERT_TRUE(NameMemory(At(memory), kBytes, ""));
  EXPECT_EXIT(memory[0] = 1, Ended, Not(HasSubstr("phub: ")));
  volatile char* const elsewhere = ReadOnly();
  EXPECT_EXIT(elsewhere[0] = 1, Ended, Not(HasSubstr("phub: ")));
}

// A program's own handler, for example Python's faulthandler, still gets the signal.
TEST(NamedMemoryDeathTest, ThePreviousHandlerRunsNext) {
  const auto write_with_handler = [] {
    signal(SIGSEGV, [](int) { _exit(7); });
    volatile char* const memory = ReadOnly();
    NameMemory(At(memory), kBytes, "parameter fc1.weight");
    memory[0] = 1;
  };
  // In a process of its own, which has no names yet.
  const std::string style = GTEST_FLAG_GET(death_test_style);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(write_with_handler(), ::testing::ExitedWithCode(7), "wrote to parameter fc1.weight");
  GTEST_FLAG_SET(death_test_style, style);
}

TEST(NamedMemory, PlacesAreUsedAgain) {
  volatile char* const memory = ReadOnly();
  for (int i = 0; i < 100'000; ++i) ASSERT_TRUE(NameMemory(At(memory), 64, "a parameter"));
  for (int i = 0; i < 4000; ++i) ASSERT_TRUE(NameMemory(At(memory + i), 1, "an element"));
  ASSERT_TRUE(NameMemory(At(memory), kBytes, ""));
}

}  // namespace
}  // namespace phub::client
