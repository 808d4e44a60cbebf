#include "common/base/last_use.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <functional>
#include <optional>

#include "common/base/shared_memory.h"

namespace phub {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::size_t kBytes = 1 << 16;

// A process that keeps the memory in its own way until it is ended.
class Holder {
 public:
  Holder(const SharedMemory& memory, const std::function<void(int)>& keep) {
    std::array<int, 2> ready{};
    std::array<int, 2> end{};
    if (pipe(ready.data()) != 0 || pipe(end.data()) != 0) return;
    pid_ = fork();
    if (pid_ == 0) {
      munmap(memory.data(), memory.bytes());
      close(end[1]);
      keep(memory.descriptor());
      char byte = 0;
      const bool told = write(ready[1], "", 1) == 1;
      _exit(told && read(end[0], &byte, 1) == 0 ? 0 : 1);
    }
    close(ready[1]);
    close(end[0]);
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    end_ = Descriptor(end[1]);
  }
  ~Holder() { End(); }
  void End() {
    if (pid_ <= 0) return;
    end_.Reset();
    waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  Descriptor end_;
};

std::vector<int> Unused(LastUse& last_use) {
  std::vector<int> numbers;
  EXPECT_TRUE(last_use.Take(numbers));
  return numbers;
}

TEST(LastUse, MemoryThatNobodyElseUsesIsReportedAtOnce) {
  auto last_use = LastUse::Create();
  ASSERT_TRUE(last_use.ok());
  int number = -1;
  {
    auto memory = SharedMemory::Create("phub-test", kBytes, SharedMemory::Others::kWrite);
    ASSERT_TRUE(memory.ok());
    memory->SetReleaseHook([&](Descriptor memfd, std::size_t bytes) {
      EXPECT_EQ(bytes, kBytes);
      number = last_use->Watch(memfd).value_or(-1);
    });
    EXPECT_THAT(Unused(*last_use), IsEmpty());
  }
  ASSERT_GE(number, 0);
  EXPECT_THAT(Unused(*last_use), ElementsAre(number));
  EXPECT_THAT(last_use->Watched(), IsEmpty());
}

// The ways to keep memory without the descriptor that was passed.
TEST(LastUse, NoWayToKeepMemoryIsOverlooked) {
  const auto reopen = [](int memfd, int flags) {
    return open(fmt::format("/proc/self/fd/{}", memfd).c_str(), flags);
  };
  const std::vector<std::pair<const char*, std::function<void(int)>>> ways = {
      {"descriptor", [](int) {}},
      {"duplicate", [](int memfd) { (void)dup(memfd), close(memfd); }},
      {"mapping",
       [](int memfd) {
         mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, memfd, 0);
         close(memfd);
       }},
      {"opened again", [&](int memfd) { reopen(memfd, O_RDONLY), close(memfd); }},
      {"path", [&](int memfd) { reopen(memfd, O_PATH), close(memfd); }},
  };
  auto last_use = LastUse::Create();
  ASSERT_TRUE(last_use.ok());
  for (const auto others : {SharedMemory::Others::kWrite, SharedMemory::Others::kRead}) {
    for (const auto& [name, keep] : ways) {
      SCOPED_TRACE(name);
      std::optional<SharedMemory> memory = *SharedMemory::Create("phub-test", kBytes, others);
      int number = -1;
      memory->SetReleaseHook(
          [&](Descriptor memfd, std::size_t) { number = last_use->Watch(memfd).value_or(-1); });
      Holder holder(*memory, keep);
      memory.reset();
      ASSERT_GE(number, 0);
      EXPECT_THAT(Unused(*last_use), IsEmpty());
      EXPECT_THAT(last_use->Watched(), ElementsAre(number));
      holder.End();
      EXPECT_THAT(Unused(*last_use), ElementsAre(number));
    }
  }
}

TEST(LastUse, MovedMemoryKeepsItsHookAndClosedMemoryHasNone) {
  int calls = 0;
  {
    auto memory = SharedMemory::Create("phub-test", kBytes, SharedMemory::Others::kWrite);
    ASSERT_TRUE(memory.ok());
    memory->SetReleaseHook([&](const Descriptor&, std::size_t) { ++calls; });
    SharedMemory moved = *std::move(memory);
    SharedMemory again;
    again = std::move(moved);
    EXPECT_EQ(calls, 0);
  }
  EXPECT_EQ(calls, 1);
  {
    auto memory = SharedMemory::Create("phub-test", kBytes, SharedMemory::Others::kWrite);
    ASSERT_TRUE(memory.ok());
    memory->SetReleaseHook([&](const Descriptor&, std::size_t) { ++calls; });
    memory->CloseDescriptor();
  }
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace phub
