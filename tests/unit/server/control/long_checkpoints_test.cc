// Snapshots, loads and versions of a job with many keys: another thread does the work on all keys,
// and each step may find that the job, the client or a newer call has ended it.
#include "tests/unit/server/control/checkpoint_fixture.h"
#include "tests/unit/server/control/held_background.h"

namespace phub::server {
namespace {

constexpr int kManyKeys = 500;
constexpr std::uint64_t kElementsOfEach = 3;

class LongCheckpointTest : public CheckpointTest {
 protected:
  LongCheckpointTest() {
    options.memory_bytes_max = 256 << 20;
    options.report_timeout = kSecond;
    options.liveness_timeout = 1000 * kSecond;
  }
  void SetUp() override {
    CheckpointTest::SetUp();
    control().turns().SetBackground(background);
    std::vector<v1::KeySpec> keys;
    for (int i = 0; i < kManyKeys; ++i)
      keys.push_back(Key("many" + std::to_string(i), kElementsOfEach));
    for (const std::string& session : sessions) {
      const auto call = AddKeys(Batch(session, 1, keys));
      RunAll();
      ASSERT_TRUE(call->ok()) << call->message();
    }
    used_before = control().memory_bytes();
  }
  void RunAll() {
    do {
      Settle();
    } while (background.RunOne());
  }
  static v1::BeginSnapshotRequest AllAt(std::uint64_t reductions) {
    v1::BeginSnapshotRequest request;
    request.set_job("digits");
    request.set_saver("saver");
    request.set_without_keys(true);
    for (std::uint32_t key = 0; key < kManyKeys + 2; ++key) {
      v1::SnapshotTarget& target = *request.add_targets();
      target.set_key_index(key);
      target.set_reductions(reductions);
    }
    return request;
  }
  v1::LoadStateRequest FirstOfLoad() {
    v1::LoadStateRequest first;
    first.set_session_id(sessions[0]);
    first.set_iteration(40);
    for (std::uint32_t key = 0; key < kManyKeys + 2; ++key) {
      v1::KeyStateInfo& info = *first.add_keys();
      info.set_key_index(key);
      info.set_reductions(30);
    }
    return first;
  }
  void LoadTheRest(LoadId load) {
    for (const auto tensor : {v1::STATE_TENSOR_PARAMETERS, v1::STATE_TENSOR_OPTIMIZER_0}) {
      v1::LoadStateRequest part;
      AddPiece(part, 0, tensor, 600);
      AddPiece(part, 1, tensor, 300);
      for (std::uint32_t key = 2; key < kManyKeys + 2; ++key)
        AddPiece(part, key, tensor, kElementsOfEach);
      ASSERT_TRUE(control().loads().LoadPart(load, part).ok());
    }
    auto [finished, answer] = Expect<v1::LoadStateResponse>();
    control().loads().FinishLoad(load, answer);
    RunAll();
    ASSERT_TRUE(finished->ok()) << finished->message();
  }
  static void AddPiece(v1::LoadStateRequest& part, std::uint32_t key, v1::StateTensor tensor,
                       std::size_t elements) {
    v1::StatePiece& piece = *part.add_pieces();
    piece.set_key_index(key);
    piece.set_tensor(tensor);
    const float value = static_cast<float>(key);
    for (std::size_t i = 0; i < elements; ++i)
      piece.mutable_elements()->append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void EvictAll() {
    v1::EvictJobRequest request;
    request.set_job("digits");
    EvictJob(request);
    Advance(10 * kSecond);
  }

  HeldBackground background;
};

TEST_F(LongCheckpointTest, NothingOfASnapshotIsDoneUnderTheLock) {
  Train(5);
  const auto begun = BeginSnapshot(AllAt(7));
  Settle();
  EXPECT_FALSE(begun->answered());
  EXPECT_EQ(background.pieces.size(), 1u);
  EXPECT_EQ(control().memory_bytes(), used_before) << "charged before it is mapped";
  RunAll();
  ASSERT_TRUE(begun->ok()) << begun->message();
  Train(4);
  const std::string id = begun->response.snapshot_id();
  const auto sink = Read(id);
  Settle();
  EXPECT_TRUE(sink->parts.empty()) << "what was copied is not described yet";
  RunAll();
  ReadToEnd(id, *sink);
  RunAll();
  ASSERT_TRUE(sink->end.has_value() && sink->end->ok());
  int keys = 0;
  std::uint64_t bytes = 0;
  for (const v1::SnapshotPart& part : sink->parts) {
    for (const v1::SnapshotKey& key : part.keys()) {
      EXPECT_EQ(key.reductions(), 7u);
      EXPECT_EQ(key.applied(), 7u);
      ++keys;
    }
    for (const v1::StatePiece& piece : part.pieces()) bytes += piece.elements().size();
  }
  EXPECT_EQ(keys, kManyKeys + 2);
  EXPECT_EQ(bytes, 2 * sizeof(float) * (900 + kManyKeys * kElementsOfEach));
  EXPECT_EQ(begun->response.bytes(), bytes);
  EXPECT_EQ(control().memory_bytes(), used_before);
}

// The saver begins again, or the job ends, after each number of steps.
TEST_F(LongCheckpointTest, ASnapshotMayEndAtAnyStep) {
  for (int steps = 0; steps < 5; ++steps) {
    const auto first = BeginSnapshot(AllAt(0));
    Settle();
    for (int i = 0; i < steps; ++i) {
      background.RunOne();
      Settle();
    }
    auto second = BeginSnapshot(AllAt(0));
    RunAll();
    EXPECT_TRUE(first->answered()) << "steps=" << steps;
    if (!second->ok()) {
      EXPECT_EQ(second->code(), absl::StatusCode::kUnavailable) << second->message();
      second = BeginSnapshot(AllAt(0));
      RunAll();
    }
    ASSERT_TRUE(second->ok()) << second->message() << " steps=" << steps;
    v1::ReadSnapshotRequest back;
    back.set_snapshot_id(second->response.snapshot_id());
    back.set_give_back(true);
    EXPECT_TRUE(
        control().snapshots().ReadSnapshot(back, std::make_shared<RecordingSnapshotSink>()).ok());
    RunAll();
    EXPECT_EQ(control().memory_bytes(), used_before) << "steps=" << steps;
  }
  const auto last = BeginSnapshot(AllAt(0));
  Settle();
  EvictAll();
  EXPECT_FALSE(last->ok());
  EXPECT_TRUE(last->answered());
  EXPECT_EQ(control().job_count(), 1u) << "the work of the other thread needs the record";
  RunAll();
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(LongCheckpointTest, NothingOfALoadIsDoneUnderTheLock) {
  Train(3);
  const auto load = control().loads().BeginLoad(FirstOfLoad());
  ASSERT_TRUE(load.ok()) << load.status();
  bool resumed = false;
  EXPECT_FALSE(control().loads().AcceptsParts(*load, [&] { resumed = true; }));
  EXPECT_EQ(background.pieces.size(), 1u);
  EXPECT_EQ(control().memory_bytes(), used_before);
  RunAll();
  EXPECT_TRUE(resumed);
  EXPECT_GT(control().memory_bytes(), used_before);
  LoadTheRest(*load);
  for (const auto& core : cores) {
    const JobShard& shard = Shard(*core);
    ASSERT_NE(shard.loaded, nullptr);
    for (std::uint32_t i = 0; i < shard.chunk_count; ++i) {
      const auto& image = shard.loaded->chunks[i];
      EXPECT_TRUE(image.ready.load());
      EXPECT_EQ(image.reductions, 30u);
      float value = -1;
      std::memcpy(&value, image.parameters, sizeof value);
      EXPECT_EQ(value, static_cast<float>(shard.chunks()[i]->key->key.value));
    }
  }
  // The keys continue at iteration 10: 40 less 30 reductions.
  v1::GetJobVersionsRequest request;
  request.set_job("digits");
  const auto versions = GetJobVersions(request);
  RunAll();
  ASSERT_TRUE(versions->ok()) << versions->message();
  ASSERT_EQ(versions->response.keys_size(), kManyKeys + 2);
  EXPECT_EQ(versions->response.keys(kManyKeys).first_iteration(), 10u);
}

TEST_F(LongCheckpointTest, ALoadMayEndWhileItIsMapped) {
  v1::LoadStateRequest twice = FirstOfLoad();
  twice.mutable_keys(7)->set_key_index(8);
  const auto wrong = control().loads().BeginLoad(twice);
  ASSERT_TRUE(wrong.ok());
  RunAll();
  EXPECT_THAT(std::string(control().loads().LoadPart(*wrong, {}).message()),
              ::testing::HasSubstr("is listed twice"));
  EXPECT_EQ(control().memory_bytes(), used_before);
  const auto cancelled = control().loads().BeginLoad(FirstOfLoad());
  control().loads().CancelLoad(*cancelled);
  const auto replaced = control().loads().BeginLoad(FirstOfLoad());
  const auto newest = control().loads().BeginLoad(FirstOfLoad());
  RunAll();
  EXPECT_FALSE(control().loads().LoadPart(*replaced, {}).ok());
  EXPECT_TRUE(control().loads().AcceptsParts(*newest, {}));
  control().loads().CancelLoad(*newest);
  RunAll();
  EXPECT_EQ(control().memory_bytes(), used_before);
  ASSERT_TRUE(control().loads().BeginLoad(FirstOfLoad()).ok());
  EvictAll();
  RunAll();
  EXPECT_EQ(control().job_count(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(LongCheckpointTest, QueriesForVersionsThatAreTooLateLeaveNothingBehind) {
  v1::GetJobVersionsRequest request;
  request.set_job("digits");
  for (int i = 0; i < 50; ++i) {
    const auto late = GetJobVersions(request);
    Settle();
    EXPECT_EQ(background.pieces.size(), 1u);
    Advance(2 * kSecond);
    EXPECT_EQ(late->code(), absl::StatusCode::kDeadlineExceeded) << late->message();
    RunAll();
    for (const std::string& session : sessions) Heartbeat(session);
  }
  const auto query = GetJobVersions(request);
  RunAll();
  EXPECT_TRUE(query->ok()) << query->message();
  const auto last = GetJobVersions(request);
  EvictAll();
  EXPECT_TRUE(last->answered());
  RunAll();
  EXPECT_EQ(control().job_count(), 0u);
}

class PagesTest : public LongCheckpointTest {
 protected:
  static constexpr std::uint32_t kPage = 100;
  PagesTest() { options.turn.keys = kPage; }
};

TEST_F(PagesTest, VersionsOfManyKeysArriveInPages) {
  v1::GetJobVersionsRequest request;
  request.set_job("digits");
  request.set_page_size(100'000);  // more than the daemon sends at once
  std::uint32_t key_count = 0;
  std::uint64_t incarnation = 0;
  int pages = 0;
  do {
    const auto page = GetJobVersions(request);
    RunAll();
    ASSERT_TRUE(page->ok()) << page->message();
    const v1::GetVersionsResponse& response = page->response;
    ASSERT_LE(response.keys_size(), static_cast<int>(kPage));
    for (const v1::KeyVersions& key : response.keys()) {
      EXPECT_EQ(key.key_index(), key_count++);
      EXPECT_GT(key.chunk_count(), 0u);
    }
    if (pages++ == 0) incarnation = response.incarnation();
    EXPECT_EQ(response.incarnation(), incarnation);
    request.set_first_key(response.next_key());
  } while (request.first_key() != 0 && pages < 100);
  EXPECT_EQ(key_count, kManyKeys + 2u);
  EXPECT_EQ(pages, 6);
  EXPECT_NE(incarnation, 0u);
  for (const std::uint32_t beyond : {kManyKeys + 2u, UINT32_MAX}) {
    request.set_first_key(beyond);
    const auto none = GetJobVersions(request);
    RunAll();
    ASSERT_TRUE(none->ok()) << none->message();
    EXPECT_EQ(none->response.keys_size(), 0);
    EXPECT_EQ(none->response.next_key(), 0u);
  }
  request.set_first_key(0);
  request.set_page_size(0);  // an older client
  const auto all = GetJobVersions(request);
  RunAll();
  ASSERT_TRUE(all->ok()) << all->message();
  EXPECT_EQ(all->response.keys_size(), kManyKeys + 2);
}

TEST_F(PagesTest, TheKeysOfALoadedCheckpointArriveInPages) {
  const auto load = control().loads().BeginLoad(FirstOfLoad());
  ASSERT_TRUE(load.ok()) << load.status();
  RunAll();
  LoadTheRest(*load);
  v1::GetLoadedStateRequest request;
  request.set_session_id(sessions[1]);
  request.set_page_size(kPage + 1);
  std::uint32_t key_count = 0;
  int pages = 0;
  do {
    const auto page = GetLoadedState(request);
    RunAll();
    ASSERT_TRUE(page->ok()) << page->message();
    ASSERT_LE(page->response.keys_size(), static_cast<int>(kPage));
    EXPECT_EQ(page->response.iteration(), 40u);
    for (const v1::KeyStateInfo& key : page->response.keys())
      EXPECT_EQ(key.key_index(), key_count++);
    request.set_first(page->response.next());
    ++pages;
  } while (request.first() != 0 && pages < 100);
  EXPECT_EQ(key_count, kManyKeys + 2u);
  EXPECT_EQ(pages, 6);
  request.set_first(UINT32_MAX);
  const auto none = GetLoadedState(request);
  RunAll();
  ASSERT_TRUE(none->ok()) << none->message();
  EXPECT_EQ(none->response.keys_size(), 0);
}

class ManyVersionsTest : public LongCheckpointTest {
 protected:
  ManyVersionsTest() { options.turn.keys = kManyKeys; }
};

// Each needs memory for the reports of all keys.
TEST_F(ManyVersionsTest, QueriesTakeTurns) {
  v1::GetJobVersionsRequest request;
  request.set_job("digits");
  std::vector<CallPtr<v1::GetVersionsResponse>> queries;
  for (int i = 0; i < 10; ++i) {
    queries.push_back(GetJobVersions(request));
    Settle();
  }
  std::size_t pieces_most = 0;
  for (int i = 0; i < 1000 && !queries.back()->answered(); ++i) {
    pieces_most = std::max(pieces_most, background.pieces.size());
    background.RunOne();
    Settle();
  }
  EXPECT_EQ(pieces_most, 1u);
  for (const auto& query : queries) {
    ASSERT_TRUE(query->ok()) << query->message();
    EXPECT_EQ(query->response.keys_size(), kManyKeys + 2);
  }
  // The job ends while queries wait.
  const auto first = GetJobVersions(request);
  const auto second = GetJobVersions(request);
  EvictAll();
  RunAll();
  EXPECT_TRUE(first->answered());
  EXPECT_TRUE(second->answered());
}

}  // namespace
}  // namespace phub::server
