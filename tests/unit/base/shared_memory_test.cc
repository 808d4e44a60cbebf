#include "common/base/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/base/descriptor_passing.h"
#include "common/base/host_boot_id.h"
#include "common/base/huge_pages.h"
#include "common/base/mapped_memory.h"
#include "tests/support/backed_pages.h"

namespace phub {
namespace {

using Access = SharedMemory::Access;
using Others = SharedMemory::Others;
constexpr std::size_t kBytes = (std::size_t{3} << 20) + 100;  // not a whole number of pages
const int kPages = static_cast<int>((kBytes + PageBytes() - 1) / PageBytes());

SharedMemory Create(Others others) {
  auto memory = SharedMemory::Create("phub-test", kBytes, others);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return *std::move(memory);
}

Descriptor Copy(const SharedMemory& memory) { return Descriptor(dup(memory.descriptor())); }

// How much of the mapping that begins at `data` is in huge pages of shared memory.
std::size_t KilobytesInHugePages(const std::byte* data) {
  std::ifstream smaps("/proc/self/smaps");
  char begin[32];
  std::snprintf(begin, sizeof begin, "%lx-", reinterpret_cast<unsigned long>(data));
  const std::string field = "ShmemPmdMapped:";
  bool here = false;
  for (std::string line; std::getline(smaps, line);) {
    here |= line.starts_with(begin);
    if (here && line.starts_with(field)) return std::stoul(line.substr(field.size()));
  }
  return 0;
}

// Whether the host can collapse existing small pages.
bool HostGivesHugePages() {
  const Descriptor file(memfd_create("phub-test", MFD_CLOEXEC));
  if (!file || ftruncate(file.get(), kHugePageBytes) != 0) return false;
  void* const data =
      MapForHugePages(kHugePageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get());
  if (data == MAP_FAILED) return false;
  std::memset(data, 1, kHugePageBytes);
  TakeHugePages(data, kHugePageBytes);
  const bool gives = KilobytesInHugePages(static_cast<const std::byte*>(data)) > 0;
  munmap(data, kHugePageBytes);
  return gives;
}

TEST(SharedMemory, IsInHugePagesWhereTheHostGivesThem) {
  const std::size_t expected = HostGivesHugePages() ? kHugePageBytes / 1024 : 0;
  const SharedMemory now = Create(Others::kWrite);
  EXPECT_GE(KilobytesInHugePages(now.data()), expected);
  const auto later =
      SharedMemory::Create("phub-test", kBytes, Others::kRead, SharedMemory::Pages::kLater);
  ASSERT_TRUE(later.ok()) << later.status();
  EXPECT_TRUE(TakePages(later->data(), kBytes));
  EXPECT_GE(KilobytesInHugePages(later->data()), expected);
}

TEST(SharedMemory, PagesMayBeTakenLater) {
  const auto memory =
      SharedMemory::Create("phub-test", kBytes, Others::kRead, SharedMemory::Pages::kLater);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_LT(BackedPages(memory->data(), kBytes), kPages);
  EXPECT_TRUE(TakePages(memory->data(), kBytes));
  EXPECT_EQ(BackedPages(memory->data(), kBytes), kPages);
}

TEST(SharedMemory, IsZeroFilledPrefaultedAndSeenByBoth) {
  const SharedMemory memory = Create(Others::kWrite);
  ASSERT_EQ(memory.bytes(), kBytes);
  EXPECT_TRUE(memory.writable());
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + kBytes,
                          [](std::byte each) { return each == std::byte{0}; }));
  EXPECT_EQ(BackedPages(memory.data(), kBytes), kPages);
  const auto there = SharedMemory::Map(Copy(memory), kBytes, Access::kWrite);
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_NE(there->data(), memory.data());
  for (const std::byte* data : {memory.data(), there->data()}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % kHugePageBytes, 0u);
  }
  EXPECT_EQ(there->descriptor(), -1);
  memory.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(there->data()[kBytes - 1], std::byte{7});
  there->data()[0] = std::byte{8};
  EXPECT_EQ(memory.data()[0], std::byte{8});
}

TEST(SharedMemory, CanBeNeitherShrunkNorGrownNorUnsealed) {
  const SharedMemory memory = Create(Others::kWrite);
  const int descriptor = memory.descriptor();
  for (const off_t size : {off_t{0}, off_t{4096}, off_t{kBytes + 1}, off_t{1} << 40}) {
    EXPECT_EQ(ftruncate(descriptor, size), -1);
    EXPECT_EQ(errno, EPERM) << size;
  }
  EXPECT_EQ(fallocate(descriptor, 0, kBytes, 4096), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(errno, EPERM);
  // Another process with write access may punch a hole. Expect: zeros to read there, and no signal.
  memory.data()[5] = std::byte{5};
  ASSERT_EQ(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), 0);
  EXPECT_EQ(memory.data()[5], std::byte{0});
}

TEST(SharedMemory, WhatOthersMayOnlyReadCannotBeWrittenByThem) {
  const SharedMemory memory = Create(Others::kRead);
  memory.data()[1] = std::byte{1};  // the maker continues to write
  const auto writing = SharedMemory::Map(Copy(memory), kBytes, Access::kWrite);
  ASSERT_FALSE(writing.ok());
  EXPECT_EQ(writing.status().code(), absl::StatusCode::kFailedPrecondition);
  const int descriptor = memory.descriptor();
  EXPECT_EQ(write(descriptor, "x", 1), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes), -1);
  const auto reading = SharedMemory::Map(Copy(memory), kBytes, Access::kRead);
  ASSERT_TRUE(reading.ok()) << reading.status();
  EXPECT_FALSE(reading->writable());
  EXPECT_EQ(reading->data()[1], std::byte{1});
  // Nor by making a mapping writable later, or through /proc.
  EXPECT_EQ(mprotect(reading->data(), kBytes, PROT_READ | PROT_WRITE), -1);
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const Descriptor reopened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (reopened) {
    EXPECT_EQ(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, reopened.get(), 0),
              MAP_FAILED);
  }
}

TEST(SharedMemory, MapsOnlyWhatIsSealedAndOfTheSizeThatWasSaid) {
  const SharedMemory memory = Create(Others::kWrite);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4096}, kBytes - 1, kBytes + 1}) {
    EXPECT_FALSE(SharedMemory::Map(Copy(memory), bytes, Access::kRead).ok()) << bytes;
    const auto part =
        SharedMemory::Map(Copy(memory), bytes, Access::kRead, SharedMemory::Size::kAtLeast);
    EXPECT_EQ(part.ok(), bytes > 0 && bytes < kBytes) << bytes;
  }
  const Descriptor unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  EXPECT_FALSE(SharedMemory::Map(unsealed, kBytes, Access::kRead).ok());
  const Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(SharedMemory::Map(file, kBytes, Access::kRead).ok());
  EXPECT_FALSE(SharedMemory::Map(Descriptor(), kBytes, Access::kRead).ok());
}

TEST(SharedMemory, NothingAndTooMuchAreErrors) {
  EXPECT_EQ(SharedMemory::Create("phub-test", 0, Others::kWrite).status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto too_much = SharedMemory::Create("phub-test", std::size_t{1} << 60, Others::kWrite);
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(SharedMemory());
}

TEST(SharedMemory, OutlivesItsDescriptorAndMoves) {
  SharedMemory memory = Create(Others::kWrite);
  std::byte* const data = memory.data();
  memory.CloseDescriptor();
  EXPECT_EQ(memory.descriptor(), -1);
  SharedMemory moved = std::move(memory);
  EXPECT_EQ(moved.data(), data);
  moved.data()[0] = std::byte{1};
  moved = SharedMemory();
  EXPECT_EQ(mincore(data, 1, std::vector<unsigned char>(1).data()), -1);
}

class Packets : public ::testing::Test {
 protected:
  void SetUp() override {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    here = Descriptor(sockets[0]);
    there = Descriptor(sockets[1]);
  }
  Descriptor here;
  Descriptor there;
  std::array<std::byte, 16> buffer{};
};

TEST_F(Packets, CarryDescriptorsOfTheSameMemory) {
  const SharedMemory memory = Create(Others::kWrite);
  const std::array<std::byte, 3> bytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  const std::array<int, 2> descriptors = {memory.descriptor(), here.get()};
  ASSERT_TRUE(SendPacket(here.get(), bytes, descriptors));
  ReceivedPacket packet = ReceivePacket(there.get(), buffer);
  EXPECT_EQ(packet.bytes, 3);
  EXPECT_EQ(buffer[2], std::byte{3});
  ASSERT_EQ(packet.descriptor_count, 2u);
  EXPECT_NE(fcntl(packet.descriptors[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  const auto mapped = SharedMemory::Map(packet.descriptors[0], kBytes, Access::kRead);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  memory.data()[9] = std::byte{9};
  EXPECT_EQ(mapped->data()[9], std::byte{9});
}

TEST_F(Packets, NeverBlockAndTellTheEnd) {
  EXPECT_EQ(ReceivePacket(there.get(), buffer).bytes, -EAGAIN);
  std::size_t sent = 0;
  while (SendPacket(here.get(), buffer, {})) ++sent;
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_GT(sent, 1u);
  while (ReceivePacket(there.get(), buffer).bytes > 0) --sent;
  EXPECT_EQ(sent, 0u);
  // A packet longer than the buffer is reported.
  const std::array<std::byte, 40> longer{};
  ASSERT_TRUE(SendPacket(here.get(), longer, {}));
  EXPECT_EQ(ReceivePacket(there.get(), buffer).bytes, 40);
  here.Reset();
  EXPECT_EQ(ReceivePacket(there.get(), buffer).bytes, 0);
}

TEST(HostBootId, IsOneLineAndStays) {
  const std::string id = HostBootId();
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(id.find('\n'), std::string::npos);
  EXPECT_EQ(id, HostBootId());
}

}  // namespace
}  // namespace phub
