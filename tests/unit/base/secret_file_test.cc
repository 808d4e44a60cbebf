#include "common/base/secret_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/status_text.h"
#include "tests/support/temporary_folder.h"

namespace phub {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kAnotherUser = 65534;

class SecretFile : public ::testing::Test {
 protected:
  // The owner changes only if the test runs as root.
  absl::Status Read(mode_t mode, uid_t owner) {
    const std::string path = folder_.path() + "/secret";
    std::ofstream(path) << "s";
    EXPECT_EQ(chown(path.c_str(), owner, kAnotherUser), 0);
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return ReadSecretFile(path).status();
  }

  const TemporaryFolder folder_;
};

TEST_F(SecretFile, OfRootMayBeReadByOneGroup) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change owners";
  EXPECT_TRUE(Read(0600, 0).ok());
  EXPECT_TRUE(Read(0440, 0).ok());  // a Kubernetes volume with fsGroup
  EXPECT_TRUE(Read(0640, 0).ok());
  EXPECT_FALSE(Read(0660, 0).ok());
  EXPECT_FALSE(Read(0444, 0).ok());
  EXPECT_TRUE(Read(0400, kAnotherUser).ok());
  EXPECT_FALSE(Read(0440, kAnotherUser).ok());
}

TEST_F(SecretFile, IsRefusedWithAdviceThatFits) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to change owners";
  EXPECT_THAT(std::string(MessageOf(Read(0644, 0))), HasSubstr("run: chmod 600 "));
  EXPECT_THAT(std::string(MessageOf(Read(0644, kAnotherUser))), HasSubstr("it belongs to uid"));
  // The links of a Kubernetes volume: token -> ..data/token, ..data -> ..2026_...
  const std::string data = folder_.path() + "/..2026_11_25_10_00_00.1";
  std::filesystem::create_directory(data);
  std::ofstream(data + "/token") << "s";
  std::filesystem::create_symlink("..2026_11_25_10_00_00.1", folder_.path() + "/..data");
  std::filesystem::create_symlink("..data/token", folder_.path() + "/token");
  const auto read = ReadSecretFile(folder_.path() + "/token");
  EXPECT_THAT(std::string(MessageOf(read.status())), HasSubstr("set defaultMode: 0440"));
  EXPECT_EQ(chmod((data + "/token").c_str(), 0440), 0);
  EXPECT_EQ(*ReadSecretFile(folder_.path() + "/token"), "s");
}

}  // namespace
}  // namespace phub
