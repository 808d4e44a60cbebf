// The pages of a state's images come from another thread: control's lock is not held while some GiB
// are prefaulted or freed, and other jobs are served meanwhile.
#include "tests/unit/server/control/checkpoint_fixture.h"
#include "tests/unit/server/control/fake_prefaulter.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

class ImagePagesTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    control().host_memory().SetPrefaulter(taker);
  }
  LoadId BeginLoad() {
    v1::LoadStateRequest first;
    first.set_session_id(sessions[0]);
    first.set_iteration(40);
    first.add_keys()->set_key_index(1);
    const auto load = control().loads().BeginLoad(first);
    EXPECT_TRUE(load.ok()) << load.status();
    return load.ok() ? *load : 0;
  }
  bool Accepts(LoadId load) {
    return control().loads().AcceptsParts(load, [this] { ++resumed; });
  }
  void AdvanceByAMinute() {
    for (int i = 0; i < 60; ++i) {
      for (const std::string& session : sessions) Heartbeat(session);
      Advance(kSecond);
    }
  }
  std::size_t Commands(Command::Kind kind) const {
    std::size_t count = 0;
    for (const auto& core : cores) count += core->Executed(kind).size();
    return count;
  }

  FakePrefaulter taker;
  int resumed = 0;
};

TEST_F(ImagePagesTest, CoreLoopsGetASnapshotOnceItHasPages) {
  const auto begun = BeginSnapshot(TargetsAt(0));
  AdvanceByAMinute();  // the time to accept a snapshot begins later
  EXPECT_EQ(Commands(Command::Kind::kTakeSnapshot), 0u);
  EXPECT_FALSE(begun->answered());
  EXPECT_GT(taker.asked_bytes, 900 * 2 * sizeof(float));
  EXPECT_GT(control().memory_bytes(), used_before);
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_EQ(Commands(Command::Kind::kTakeSnapshot), cores.size());
  EXPECT_TRUE(begun->ok()) << begun->message();
}

TEST_F(ImagePagesTest, ASnapshotWithoutPagesIsRefusedAndFreed) {
  const auto begun = BeginSnapshot(TargetsAt(0));
  taker.SetAll(PrefaultState::kRefused);
  Settle();
  EXPECT_FALSE(begun->answered()) << "its memory is not free yet";
  taker.freed->store(true);
  Settle();
  EXPECT_EQ(begun->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(begun->message(), HasSubstr("refused to allocate"));
  EXPECT_EQ(control().memory_bytes(), used_before);
  EXPECT_EQ(Commands(Command::Kind::kTakeSnapshot), 0u);
}

TEST_F(ImagePagesTest, ASnapshotStaysChargedUntilItIsFree) {
  const auto begun = BeginSnapshot(TargetsAt(0));
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  const std::string id = begun->response.snapshot_id();
  const auto sink = Read(id);
  ReadToEnd(id, *sink);
  EXPECT_FALSE(sink->end) << "its memory is not free yet";
  EXPECT_GT(control().memory_bytes(), used_before);
  EXPECT_THAT(BeginSnapshot(TargetsAt(0))->message(), HasSubstr("still being released"));
  EXPECT_NE(taker.unwanted, nullptr);
  taker.unwanted.reset();
  taker.freed->store(true);
  Settle();
  ASSERT_TRUE(sink->end);
  EXPECT_TRUE(sink->end->ok());
  EXPECT_EQ(control().memory_bytes(), used_before);
  EXPECT_EQ(taker.owned(), 0u);
}

TEST_F(ImagePagesTest, PartsOfALoadWaitForPages) {
  const LoadId load = BeginLoad();
  EXPECT_FALSE(Accepts(load));
  AdvanceByAMinute();  // the client is not late
  EXPECT_EQ(resumed, 0);
  taker.SetAll(PrefaultState::kTaken);
  Settle();
  EXPECT_EQ(resumed, 1);
  EXPECT_TRUE(Accepts(load));
  EXPECT_TRUE(control().loads().LoadPart(load, {}).ok());
}

TEST_F(ImagePagesTest, ALoadWithoutPagesIsRefused) {
  const LoadId load = BeginLoad();
  EXPECT_FALSE(Accepts(load));
  taker.SetAll(PrefaultState::kRefused);
  Settle();
  EXPECT_EQ(resumed, 1);
  EXPECT_EQ(control().loads().LoadPart(load, {}).code(), absl::StatusCode::kResourceExhausted);
  taker.freed->store(true);
  Settle();
  EXPECT_EQ(control().memory_bytes(), used_before);
}

TEST_F(ImagePagesTest, AJobThatEndsGivesItsImagesToTheOtherThread) {
  BeginSnapshot(TargetsAt(0));
  const LoadId load = BeginLoad();
  EXPECT_FALSE(Accepts(load));
  const std::size_t images = 2 * cores.size();
  ASSERT_EQ(taker.owned(), images);
  v1::EvictJobRequest request;
  request.set_job("digits");
  EvictJob(request);
  Advance(10 * kSecond);
  EXPECT_EQ(resumed, 1);
  EXPECT_NE(taker.unwanted, nullptr);
  EXPECT_EQ(taker.owned(), images);
  taker.unwanted.reset();
  EXPECT_EQ(taker.owned(), 0u);
}

}  // namespace
}  // namespace phub::server
