// Memory that ranks share with the daemon: staging, parameters, their own regions, and who receives
// them.
#include <fcntl.h>
#include <sys/mman.h>

#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

constexpr PeerProcess kWorker{.pid = 4711, .uid = 1000};

class SharedMemoryTest : public ControlTest {
 protected:
  SharedMemoryTest() { options.memory_bytes_max = 256 << 20; }

  void SetUp() override { control().host_memory().SetSharedMemoryEndpoint("phub-0123", "boot-1"); }

  wire::SharedBatchRequest RequestOf(const v1::AddKeysResponse& response, std::uint32_t rank,
                                     std::uint32_t batch) const {
    wire::SharedBatchRequest request;
    request.version_min = request.version_max = 1;
    request.batch = batch;
    request.rank = Rank{rank};
    request.incarnation = Incarnation{last_join.incarnation()};
    request.membership_epoch = MembershipEpoch{last_join.membership_epoch()};
    EXPECT_EQ(response.shared_nonce().size(), wire::kNonceBytes);
    std::copy_n(reinterpret_cast<const std::byte*>(response.shared_nonce().data()),
                std::min(response.shared_nonce().size(), wire::kNonceBytes), request.nonce.begin());
    return request;
  }
  v1::AddKeysResponse AddShared(const std::string& session, std::uint32_t batch,
                                const std::vector<v1::KeySpec>& keys, std::uint64_t bytes) {
    v1::AddKeysRequest request = Batch(session, batch, keys);
    request.set_shared_bytes(bytes);
    const auto call = AddKeys(request);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    return call->response;
  }
  transport::BatchMemory Fetch(const v1::AddKeysResponse& response, std::uint32_t rank,
                               std::uint32_t batch, PeerProcess process = kWorker) {
    transport::BatchMemory memory;
    EXPECT_EQ(
        control().rank_memories().AdmitBatch(RequestOf(response, rank, batch), process, memory),
        wire::LaneRefusal::kNone);
    return memory;
  }
};

TEST_F(SharedMemoryTest, JoinSaysWhereTheListenerIs) {
  Enter(0, 1);
  EXPECT_EQ(last_join.shared_memory().name(), "phub-0123");
  EXPECT_EQ(last_join.shared_memory().boot_id(), "boot-1");
}

TEST_F(SharedMemoryTest, ParametersAreOneMemoryThatWorkersMayOnlyRead) {
  const std::vector<std::string> sessions = EnterAll(2);
  v1::KeySpec halves = Key("b", 1000);
  halves.set_parameter_type(v1::ELEMENT_TYPE_BF16);
  const std::vector<v1::KeySpec> keys = {Key("a", 1000), halves, Key("c", 5)};
  const v1::AddKeysResponse first = AddShared(sessions[0], 0, keys, 0);
  const v1::AddKeysResponse second = AddShared(sessions[1], 0, keys, 0);
  // 4000 bytes to the next multiple of 64, then 2000, then 20.
  EXPECT_EQ(first.placements(0).shared_offset(), 0u);
  EXPECT_EQ(first.placements(1).shared_offset(), 4032u);
  EXPECT_EQ(first.placements(2).shared_offset(), 4032u + 2048);
  EXPECT_EQ(first.shared_parameters_bytes(), 4032u + 2048 + 64);
  EXPECT_NE(first.shared_nonce(), second.shared_nonce());
  const transport::BatchMemory mine = Fetch(first, 0, 0);
  const transport::BatchMemory theirs = Fetch(second, 1, 0, {.pid = 4712, .uid = 1001});
  EXPECT_EQ(mine.worker, nullptr);
  ASSERT_NE(mine.parameters, nullptr);
  EXPECT_EQ(mine.parameters, theirs.parameters);
  // Expect: the core loops' chunks are in it.
  const KeyBatch& batch = *cores[0]->Executed(Command::Kind::kAddKeys)[0].batch;
  ASSERT_FALSE(batch.chunks.empty());
  EXPECT_GE(batch.chunks[0].parameters[0], mine.parameters->data());
  EXPECT_LT(batch.chunks[0].parameters[0], mine.parameters->data() + mine.parameters->bytes());
  // Expect: a process that receives the descriptor cannot write through it.
  const int descriptor = mine.parameters->descriptor();
  EXPECT_EQ(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, descriptor, 0), MAP_FAILED);
  EXPECT_NE(fcntl(descriptor, F_GET_SEALS) & F_SEAL_FUTURE_WRITE, 0);
}

TEST_F(SharedMemoryTest, ARanksOwnRegionIsChargedAndItsAlone) {
  const std::string session = Enter(0, 1);
  const std::uint64_t before = control().memory_bytes();
  const v1::AddKeysResponse response = AddShared(session, 0, {Key("a", 1000)}, 1 << 20);
  EXPECT_GT(control().memory_bytes(), before + (1 << 20));
  const transport::BatchMemory memory = Fetch(response, 0, 0);
  ASSERT_NE(memory.worker, nullptr);
  EXPECT_EQ(memory.worker->bytes(), std::size_t{1} << 20);
  EXPECT_EQ(memory.worker_region, 0u);
  EXPECT_EQ(memory.parameters_region, 1u);
  // The next batch has parameters only.
  const transport::BatchMemory next = Fetch(AddShared(session, 1, {Key("b", 8)}, 0), 0, 1);
  EXPECT_EQ(next.worker, nullptr);
  EXPECT_EQ(next.parameters_region, 2u);
  // Expect: its lanes share the same regions under the same numbers.
  const auto grants = OpenLanesOf(session);
  const wire::LaneHello hello = HelloOf(grants->response, 0, 1);
  ASSERT_EQ(control().lanes().AdmitLane(hello, kWorker), wire::LaneRefusal::kNone);
  const auto lane = control().rank_memories().SharedLaneMemory(hello);
  ASSERT_TRUE(lane.ok());
  ASSERT_EQ(lane->regions->count(), 3u);
  using transport::SharedRegions;
  std::uint32_t hint = 0;
  EXPECT_EQ(lane->regions->ResolveForReading(SharedRegions::Pack(0, 0), 1), memory.worker->data());
  EXPECT_EQ(lane->regions->Find(memory.parameters->data(), 1, hint), 1u);
  EXPECT_EQ(lane->regions->ResolveForReading(SharedRegions::Pack(1, 0), 1), nullptr);
  Leave(session);
  Settle();
  EXPECT_EQ(control().memory_bytes(), 0u);
}

TEST_F(SharedMemoryTest, ALanesStagingIsWhatItsCoreLoopReceivesInto) {
  const std::string session = Enter(0, 1);
  const auto grants = OpenLanesOf(session);
  const wire::LaneHello hello = HelloOf(grants->response, 0, 1);
  ASSERT_EQ(control().lanes().AdmitLane(hello, kWorker), wire::LaneRefusal::kNone);
  const auto lane = control().rank_memories().SharedLaneMemory(hello);
  ASSERT_TRUE(lane.ok());
  EXPECT_EQ(lane->slot_count, 4u);
  EXPECT_EQ(lane->slot_bytes, 1024u);
  EXPECT_EQ(lane->staging->bytes(), 4096u);
  Attach(hello);
  Settle();
  EXPECT_EQ(cores[1]->attached.at(0).staging, lane->staging->data());
  // The lane to the other core has its own memory.
  const wire::LaneHello other = HelloOf(grants->response, 0, 0);
  EXPECT_EQ(control().lanes().AdmitLane(other, kWorker), wire::LaneRefusal::kNone);
  EXPECT_NE(control().rank_memories().SharedLaneMemory(other)->staging->data(),
            lane->staging->data());
}

TEST_F(SharedMemoryTest, NoncesOfBatchesAreGoodOnceAndForAWhile) {
  const std::string session = Enter(0, 1);
  const v1::AddKeysResponse response = AddShared(session, 0, {Key("a", 8)}, 64);
  const wire::SharedBatchRequest request = RequestOf(response, 0, 0);
  transport::BatchMemory memory;
  wire::SharedBatchRequest wrong = request;
  wrong.nonce[3] ^= std::byte{1};
  EXPECT_EQ(control().rank_memories().AdmitBatch(wrong, kWorker, memory),
            wire::LaneRefusal::kNonce);
  wrong = request;
  wrong.batch = 1;
  EXPECT_EQ(control().rank_memories().AdmitBatch(wrong, kWorker, memory),
            wire::LaneRefusal::kNonce);
  wrong = request;
  wrong.rank = Rank{9};
  EXPECT_EQ(control().rank_memories().AdmitBatch(wrong, kWorker, memory),
            wire::LaneRefusal::kNonce);
  wrong = request;
  wrong.incarnation.value ^= 1;
  EXPECT_EQ(control().rank_memories().AdmitBatch(wrong, kWorker, memory), wire::LaneRefusal::kJob);
  EXPECT_EQ(memory.worker, nullptr);
  EXPECT_EQ(control().rank_memories().AdmitBatch(request, kWorker, memory),
            wire::LaneRefusal::kNone);
  EXPECT_EQ(control().rank_memories().AdmitBatch(request, kWorker, memory),
            wire::LaneRefusal::kNonce);
  // A repeated call returns a new nonce for the same memory.
  const v1::AddKeysResponse again = AddShared(session, 0, {Key("a", 8)}, 64);
  EXPECT_EQ(Fetch(again, 0, 0).worker, memory.worker);
  const v1::AddKeysResponse late = AddShared(session, 0, {Key("a", 8)}, 64);
  clock.now += options.nonce_lifetime;
  EXPECT_EQ(control().rank_memories().AdmitBatch(RequestOf(late, 0, 0), kWorker, memory),
            wire::LaneRefusal::kNonce);
  EXPECT_EQ(Counter("phub_batches_refused_nonce_total"), 5u);
  EXPECT_EQ(Counter("phub_batches_refused_job_total"), 1u);
  EXPECT_EQ(Counter("phub_batches_fetched_total"), 2u);
}

TEST_F(SharedMemoryTest, EverythingOfARankGoesToOneProcess) {
  const std::string session = Enter(0, 1);
  Fetch(AddShared(session, 0, {Key("a", 8)}, 64), 0, 0);
  transport::BatchMemory memory;
  const v1::AddKeysResponse again = AddShared(session, 0, {Key("a", 8)}, 64);
  EXPECT_EQ(control().rank_memories().AdmitBatch(RequestOf(again, 0, 0), {.pid = 4712, .uid = 1000},
                                                 memory),
            wire::LaneRefusal::kNonce);
  EXPECT_EQ(memory.parameters, nullptr);
  const auto grants = OpenLanesOf(session);
  const wire::LaneHello hello = HelloOf(grants->response, 0, 0);
  EXPECT_EQ(control().lanes().AdmitLane(hello, PeerProcess{.pid = 4711, .uid = 0}),
            wire::LaneRefusal::kNonce);
  EXPECT_EQ(Counter("phub_shared_refused_process_total"), 2u);
  // A lane over tcp has no process id to compare.
  EXPECT_EQ(control().lanes().AdmitLane(HelloOf(OpenLanesOf(session)->response, 0, 0)),
            wire::LaneRefusal::kNone);
}

TEST_F(SharedMemoryTest, ARegionThatDoesNotFitIsRefusedWithTheShortfallAndTheJobGoesOn) {
  const std::string session = Enter(0, 1);
  v1::AddKeysRequest request = Batch(session, 0, {Key("a", 8)});
  request.set_shared_bytes(std::uint64_t{1} << 30);
  const auto call = AddKeys(request);
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(), HasSubstr("too much"));
  EXPECT_EQ(Counter("phub_keys_refused_region_total"), 1u);
  request.set_shared_bytes(UINT64_MAX);
  EXPECT_EQ(AddKeys(request)->code(), absl::StatusCode::kInvalidArgument);
  // Expect: a batch that requests less is accepted.
  Fetch(AddShared(session, 0, {Key("a", 8)}, 4096), 0, 0);
}

class GroupMemoryTest : public SharedMemoryTest {
 protected:
  CallPtr<v1::AddKeysResponse> Add(std::uint32_t rank, std::uint32_t batch, std::uint32_t region,
                                   std::uint64_t bytes, const std::string& name = "pair") {
    v1::KeySpec key = Key("a" + std::to_string(batch), 1000);
    key.set_optimizer(v1::OPTIMIZER_NONE);
    key.clear_hyper_parameters();
    key.set_collective(true);
    v1::AddKeysRequest request = Batch(sessions[rank], batch, {key});
    request.set_shared_bytes(bytes);
    request.set_shared_region(region);
    request.mutable_group()->set_name(name);
    for (const std::uint32_t each : {0u, 2u}) request.mutable_group()->add_ranks(each);
    const auto call = AddKeys(request);
    Settle();
    return call;
  }
  wire::LaneRefusal Admit(const v1::AddKeysResponse& response, std::uint32_t rank,
                          std::uint32_t region, transport::BatchMemory& memory) {
    const PeerProcess process{.pid = 4711 + rank, .uid = 1000};
    return control().rank_memories().AdmitBatch(
        RequestOf(response, rank, wire::kGroupBatchesFirst + region), process, memory);
  }
  void Remove(std::uint64_t group) {
    std::vector<CallPtr<v1::RemoveKeysResponse>> calls;
    for (const std::uint32_t rank : {0u, 2u}) {
      v1::RemoveKeysRequest request;
      request.set_session_id(sessions[rank]);
      request.set_group_id(group);
      calls.push_back(RemoveKeys(request));
      Settle();
    }
    for (const auto& call : calls) EXPECT_TRUE(call->ok()) << call->message();
  }

  static constexpr std::uint32_t kFirst = wire::kGroupRegionsFirst;
  std::vector<std::string> sessions;
};

TEST_F(GroupMemoryTest, IsThatOfOneMemberAndComesBackWithTheGroup) {
  sessions = EnterAll(3);
  const std::uint64_t before = control().memory_bytes();
  for (int i = 0; i < 50; ++i) {
    const auto mine = Add(0, 0, kFirst + 3, 1 << 20);
    const auto theirs = Add(2, 0, kFirst, 1 << 16);
    ASSERT_TRUE(mine->ok() && theirs->ok()) << mine->message() << theirs->message();
    EXPECT_GE(control().memory_bytes(), before + (1 << 20) + (1 << 16));
    transport::BatchMemory memory;
    transport::BatchMemory other;
    ASSERT_EQ(Admit(mine->response, 0, kFirst + 3, memory), wire::LaneRefusal::kNone);
    ASSERT_EQ(Admit(theirs->response, 2, kFirst, other), wire::LaneRefusal::kNone);
    EXPECT_EQ(memory.worker->bytes(), std::size_t{1} << 20);
    EXPECT_EQ(memory.worker_region, kFirst + 3);
    EXPECT_EQ(memory.parameters, nullptr);
    EXPECT_EQ(other.worker->bytes(), std::size_t{1} << 16);
    // A call that is repeated has the same memory.
    const auto again = Add(0, 0, kFirst + 3, 1 << 20);
    ASSERT_TRUE(again->ok()) << again->message();
    transport::BatchMemory same;
    ASSERT_EQ(Admit(again->response, 0, kFirst + 3, same), wire::LaneRefusal::kNone);
    EXPECT_EQ(same.worker, memory.worker);
    const auto late = Add(0, 0, kFirst + 3, 1 << 20);
    Remove(mine->response.group_id());
    EXPECT_EQ(control().memory_bytes(), before);
    EXPECT_EQ(Admit(late->response, 0, kFirst + 3, same), wire::LaneRefusal::kNonce);
  }
  control().CheckInvariants();
}

TEST_F(GroupMemoryTest, RegionsThatAreNotFreeAreRefusedAndTheGroupGoesOn) {
  sessions = EnterAll(3);
  ASSERT_TRUE(Add(0, 0, kFirst, 4096)->ok());
  const auto expect = [&](const CallPtr<v1::AddKeysResponse>& call, const std::string& part) {
    EXPECT_EQ(call->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(call->message(), HasSubstr(part));
  };
  expect(Add(0, 1, kFirst, 4096), "which is in use");
  expect(Add(0, 1, 0, 4096), "rank 0 (node0) requested region 0 of shared memory for group pair");
  expect(Add(0, 1, kFirst - 1, 4096), "which is not a region of groups");
  expect(Add(0, 1, kFirst + wire::kGroupRegionsMax, 4096), "which is not a region of groups");
  expect(Add(0, 0, kFirst + 1, 4096), "but has another one for this batch");
  expect(Add(0, 1, kFirst + 1, UINT64_MAX), "the limit is");
  EXPECT_EQ(Counter("phub_keys_refused_region_total"), 6u);
  // Other ranks have tables of their own.
  EXPECT_TRUE(Add(2, 0, kFirst, 4096)->ok());
  EXPECT_TRUE(Add(0, 1, kFirst + 1, 4096)->ok());
  const auto none = Add(2, 1, 0, 0);
  EXPECT_TRUE(none->ok());
  EXPECT_EQ(none->response.shared_nonce(), "");
  Remove(none->response.group_id());
  control().CheckInvariants();
}

TEST_F(SharedMemoryTest, MemoryComesBackWholeAfterManyJobs) {
  const auto descriptors = [] {
    const int next = dup(0);
    close(next);
    return next;
  };
  const int before = descriptors();
  for (int i = 0; i < 100; ++i) {
    const std::vector<std::string> sessions = EnterAll(2);
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Fetch(AddShared(sessions[rank], 0, {Key("a", 5000)}, 8192), rank, 0,
            {.pid = 100 + rank, .uid = 0});
    }
    for (const std::string& session : sessions) Leave(session);
    Settle();
    ASSERT_EQ(control().memory_bytes(), 0u);
  }
  EXPECT_EQ(descriptors(), before);
}

class NoSharedMemoryTest : public ControlTest {};

TEST_F(NoSharedMemoryTest, NothingIsSharedAndRegionsAreRefused) {
  const std::string session = Enter(0, 1);
  EXPECT_EQ(last_join.shared_memory().name(), "");
  v1::AddKeysRequest request = Batch(session, 0, {Key("a", 8)});
  request.set_shared_bytes(64);
  EXPECT_EQ(AddKeys(request)->code(), absl::StatusCode::kFailedPrecondition);
  const auto call = AddKeys(Batch(session, 0, {Key("a", 8)}));
  Settle();
  ASSERT_TRUE(call->ok()) << call->message();
  EXPECT_EQ(call->response.shared_nonce(), "");
  EXPECT_EQ(call->response.shared_parameters_bytes(), 0u);
}

}  // namespace
}  // namespace phub::server
