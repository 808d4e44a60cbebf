// Real disks that are full, read-only or limited. The file systems are mounted in a mount namespace
// of this process, so they disappear with it. That needs root.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "tests/unit/checkpoint/checkpoint_support.h"

namespace phub::checkpoint {
namespace {

class SmallDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(unshare(CLONE_NEWNS), 0) << strerror(errno) << ": this test needs root";
    ASSERT_EQ(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0) << strerror(errno);
    ASSERT_EQ(mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=256k"), 0)
        << strerror(errno);
  }
  void TearDown() override { EXPECT_EQ(umount(folder_.path().c_str()), 0) << strerror(errno); }

  SavedValues StateOf(std::uint64_t iteration, std::uint64_t elements) {
    SavedValues state = SmallCheckpoint(iteration, iteration);
    state.description.keys[0].element_count = elements;
    return WithContents(std::move(state.description), iteration);
  }
  FolderInMemory folder_;
};

TEST_F(SmallDisk, AFullDiskIsKnownBeforeAnythingIsWritten) {
  const SavedValues small = StateOf(1, 1000);
  ASSERT_EQ(Save(folder_.path(), small), absl::OkStatus());
  const auto names = NamesIn(folder_.path());
  const auto writer = CheckpointWriter::Create(folder_.path(), StateOf(2, 100'000).description);
  EXPECT_TRUE(absl::IsResourceExhausted(writer.status())) << writer.status();
  const std::string text = TextOf(writer.status());
  EXPECT_TRUE(text.starts_with(folder_.path() + "/state-2-")) << text;
  EXPECT_TRUE(text.ends_with("No space left on device")) << text;
  EXPECT_EQ(NamesIn(folder_.path()), names);
  EXPECT_EQ(*Load(folder_.path()), small);
  // Expect: the reserved space is free again.
  EXPECT_EQ(Save(folder_.path(), StateOf(3, 10'000)), absl::OkStatus());
}

TEST_F(SmallDisk, ADiskThatFillsUpMeanwhileFailsTheCommit) {
  const SavedValues small = StateOf(1, 1000);
  ASSERT_EQ(Save(folder_.path(), small), absl::OkStatus());
  const auto names = NamesIn(folder_.path());
  const SavedValues state = StateOf(2, 1000);
  auto writer = CheckpointWriter::Create(folder_.path(), state.description);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  ASSERT_EQ(WriteAll(**writer, state), absl::OkStatus());
  {  // Another process fills the disk.
    std::ofstream filler(folder_.path() + "/filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (filler.write(block.data(), 4096).flush()) continue;
  }
  const absl::Status status = (*writer)->Commit();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(TextOf(status).find(".manifest.tmp: cannot write the file: No space left on device"),
            std::string::npos)
      << status;
  writer->reset();
  std::filesystem::remove(folder_.path() + "/filler");
  EXPECT_EQ(NamesIn(folder_.path()), names);
  EXPECT_EQ(*Load(folder_.path()), small);
}

TEST_F(SmallDisk, AReadOnlyDiskIsReadAndNotWritten) {
  const SavedValues small = StateOf(1, 1000);
  ASSERT_EQ(Save(folder_.path(), small), absl::OkStatus());
  ASSERT_EQ(mount(nullptr, folder_.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  const absl::Status status = Save(folder_.path(), StateOf(2, 1000));
  EXPECT_TRUE(TextOf(status).starts_with(folder_.path() + "/state-2-")) << status;
  EXPECT_TRUE(TextOf(status).ends_with("cannot create the file: Read-only file system")) << status;
  EXPECT_EQ(*Load(folder_.path()), small);
}

TEST(LimitedProcess, AFileThatIsTooLargeForItIsAnError) {
  const FolderInMemory folder;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{1000, 1000};
    std::signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    const absl::Status status = Save(folder.path(), SmallCheckpoint(1, 1));
    _exit(TextOf(status).ends_with("File too large") && NamesIn(folder.path()).empty() ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(LimitedProcess, AFolderThatIsNotItsOwnIsAnError) {
  const FolderInMemory folder;
  ASSERT_EQ(chmod(folder.path().c_str(), 0755), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (geteuid() == 0 && setuid(kNobody) != 0) _exit(1);
    if (geteuid() != kNobody && chmod(folder.path().c_str(), 0555) != 0) _exit(2);
    const absl::Status status = Save(folder.path(), SmallCheckpoint(1, 1));
    _exit(absl::IsPermissionDenied(status) && TextOf(status).ends_with("Permission denied") ? 0
                                                                                            : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace phub::checkpoint
