#include "server/tenant/store_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "server/tenant/sqlite_store.h"

namespace phub::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreWriterTest : public ::testing::Test {
 protected:
  // A change that fails while the disk does, as SQLite reports it.
  StoreWriter::Change Change(const std::string& name) {
    return [this, name](ControlStore&) {
      if (!disk_.ok()) return disk_;
      written_.push_back(name);
      return absl::OkStatus();
    };
  }

  SystemRandom random_;
  const std::unique_ptr<ControlStore> store_ = *SqliteStore::Open("", random_);
  StoreWriter writer_{*store_};
  absl::Status disk_;
  std::vector<std::string> written_;
};

TEST_F(StoreWriterTest, DeferredChangesAreWrittenInOrderBeforeNewOnes) {
  disk_ = absl::ResourceExhaustedError("database or disk is full");
  EXPECT_FALSE(writer_.Write(Change("ordinary")).ok());
  EXPECT_TRUE(writer_.Warning().empty());
  EXPECT_TRUE(writer_.WriteOrDefer(Change("first")).ok());
  EXPECT_TRUE(writer_.WriteOrDefer(Change("second")).ok());
  EXPECT_THAT(writer_.Warning(), HasSubstr("2 change(s) are applied but not on disk"));
  EXPECT_FALSE(writer_.HasRoomForTenants());
  EXPECT_EQ(writer_.state().deferred, 2u);
  EXPECT_THAT(writer_.state().fault, HasSubstr("full"));
  writer_.Retry();
  EXPECT_EQ(writer_.state().deferred, 2u);
  disk_ = absl::OkStatus();
  EXPECT_TRUE(writer_.Write(Change("third")).ok());
  EXPECT_THAT(written_, ElementsAre("first", "second", "third"));
  EXPECT_EQ(writer_.state(), StoreState());
  EXPECT_TRUE(writer_.HasRoomForTenants());
}

TEST_F(StoreWriterTest, AFaultOfTheChangeItselfIsNotDeferred) {
  disk_ = absl::AlreadyExistsError("a constraint");
  EXPECT_TRUE(absl::IsAlreadyExists(writer_.WriteOrDefer(Change("wrong"))));
  EXPECT_EQ(writer_.state().deferred, 0u);
}

}  // namespace
}  // namespace phub::server
