#include "server/etcd/local_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "phub/store/records.pb.h"
#include "tests/support/temporary_folder.h"

namespace phub::server::etcd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const LocalChange kSuspension{LocalKind::kSuspend,
                              "acme",
                              17,
                              {"uid 0", "unix:", "tenant.suspend", "acme", "late bills", "ok", 5}};
const LocalChange kRevocation{
    LocalKind::kRevoke, "acme", 18, {"uid 0", "unix:", "token.revoke", "3f2a", "ci", "ok", 6}};
const LocalChange kEntry{
    LocalKind::kAudit, "", 0, {"uid 0", "unix:", "server.drain", "", "", "ok", 7}};

class LocalFileTest : public ::testing::Test {
 protected:
  std::string Contents() const {
    std::ifstream file(file_.path(), std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void Overwrite(const std::string& text) const {
    std::ofstream(file_.path(), std::ios::binary | std::ios::trunc) << text;
  }
  // Writes changes as phub would, without its checks.
  void Forge(const phub::store::v1::StoredLocalChanges& changes) const {
    Overwrite(records_.Seal("/local/node1", changes.SerializeAsString()));
  }

  const TemporaryFolder folder_;
  const std::string token_key_ = folder_.path() + "/token.key";
  const Records records_{std::string(32, 'k'), "cluster"};
  LocalFile file_{records_, token_key_, "node1"};
};

TEST_F(LocalFileTest, HasWhatWasWrittenUntilItIsEmptied) {
  EXPECT_EQ(file_.path(), token_key_ + ".node1.local");
  EXPECT_THAT(*file_.Read(), IsEmpty());
  const std::vector<LocalChange> changes{kSuspension, kRevocation, kEntry};
  ASSERT_TRUE(file_.Write({kEntry}).ok());
  ASSERT_TRUE(file_.Write(changes).ok());
  EXPECT_EQ(*LocalFile(records_, token_key_, "node1").Read(), changes);
  struct stat facts {};
  ASSERT_EQ(stat(file_.path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600u);
  ASSERT_TRUE(file_.Write({}).ok());
  EXPECT_NE(stat(file_.path().c_str(), &facts), 0);
  EXPECT_THAT(*file_.Read(), IsEmpty());
  EXPECT_TRUE(file_.Write({}).ok());
}

// A daemon that read less than the file has would accept a token that was revoked.
TEST_F(LocalFileTest, EachChangedByteAndEachPartIsAnError) {
  ASSERT_TRUE(file_.Write({kSuspension, kRevocation}).ok());
  const std::string right = Contents();
  for (std::size_t i = 0; i < right.size(); ++i) {
    Overwrite(right.substr(0, i));
    EXPECT_TRUE(absl::IsDataLoss(file_.Read().status())) << i;
    std::string wrong = right;
    wrong[i] = static_cast<char>(wrong[i] ^ 1);
    Overwrite(wrong);
    EXPECT_TRUE(absl::IsDataLoss(file_.Read().status())) << i;
  }
  Overwrite("[]\n");
  const std::string error(file_.Read().status().message());
  EXPECT_THAT(error, HasSubstr(file_.path()));
  EXPECT_THAT(error, HasSubstr("remove it and repeat"));
  Overwrite(right);
  EXPECT_TRUE(file_.Read().ok());
}

TEST_F(LocalFileTest, OfAnotherDaemonClusterOrKeyIsAnError) {
  ASSERT_TRUE(file_.Write({kSuspension}).ok());
  const std::string right = Contents();
  LocalFile other(records_, token_key_, "node2");
  std::ofstream(other.path(), std::ios::binary) << right;
  ASSERT_EQ(chmod(other.path().c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsDataLoss(other.Read().status()));
  const Records cluster(std::string(32, 'k'), "another cluster");
  EXPECT_TRUE(absl::IsDataLoss(LocalFile(cluster, token_key_, "node1").Read().status()));
  const Records key(std::string(32, 'x'), "cluster");
  EXPECT_TRUE(absl::IsDataLoss(LocalFile(key, token_key_, "node1").Read().status()));
  ASSERT_EQ(chmod(file_.path().c_str(), 0644), 0);
  EXPECT_THAT(std::string(file_.Read().status().message()), HasSubstr("chmod 600"));
}

TEST_F(LocalFileTest, ChangesOfAnotherKindAndTooManyAreAnError) {
  phub::store::v1::StoredLocalChanges changes;
  changes.add_changes()->set_kind(4);
  Forge(changes);
  ASSERT_EQ(chmod(file_.path().c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsDataLoss(file_.Read().status()));
  changes.mutable_changes(0)->set_kind(256 + 3);
  Forge(changes);
  EXPECT_TRUE(absl::IsDataLoss(file_.Read().status()));
  changes.mutable_changes(0)->set_kind(3);
  for (std::size_t i = 1; i < kLocalEntriesMax; ++i) changes.add_changes()->set_kind(3);
  Forge(changes);
  EXPECT_EQ(file_.Read()->size(), kLocalEntriesMax);
  changes.add_changes()->set_kind(3);
  Forge(changes);
  EXPECT_TRUE(absl::IsDataLoss(file_.Read().status()));
}

TEST_F(LocalFileTest, IsNotWrittenBeyondItsSize) {
  LocalChange large = kEntry;
  large.note.detail.assign(5 << 20, 'x');
  EXPECT_THAT(std::string(file_.Write({large}).message()), HasSubstr("its limit"));
  LocalFile nowhere(records_, folder_.path() + "/missing/token.key", "node1");
  EXPECT_THAT(std::string(nowhere.Write({kEntry}).message()), HasSubstr("cannot write"));
}

}  // namespace
}  // namespace phub::server::etcd
