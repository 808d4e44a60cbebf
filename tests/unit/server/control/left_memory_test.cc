// Shared memory that processes keep after their job has ended: what it is charged to, and what
// waits for it.
#include <unistd.h>

#include "common/base/descriptor.h"
#include "tests/unit/server/control/control_fixture.h"

namespace phub::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr PeerProcess kHoarder{.pid = 4711, .uid = 1000};
constexpr std::uint64_t kRegionBytes = 8 << 20;

class LeftMemoryTest : public ControlTest {
 protected:
  LeftMemoryTest() { options.memory_bytes_max = 64 << 20; }
  void SetUp() override {
    control().host_memory().SetSharedMemoryEndpoint("phub-0123", "boot-1");
    ASSERT_TRUE(control().host_memory().left().Start().ok());
  }

  static Descriptor Keep(const std::shared_ptr<const SharedMemory>& memory) {
    return Descriptor(dup(memory->descriptor()));
  }
  // What a worker that has added a batch may map.
  transport::BatchMemory FetchBatch(const std::string& session, std::uint32_t rank,
                                    std::uint64_t bytes) {
    v1::AddKeysRequest add = Batch(session, 0, {Key("a", 1000)});
    add.set_shared_bytes(bytes);
    const auto call = AddKeys(add);
    Settle();
    EXPECT_TRUE(call->ok()) << call->message();
    wire::SharedBatchRequest request;
    request.version_min = request.version_max = 1;
    request.rank = Rank{rank};
    request.incarnation = Incarnation{last_join.incarnation()};
    request.membership_epoch = MembershipEpoch{last_join.membership_epoch()};
    std::copy_n(reinterpret_cast<const std::byte*>(call->response.shared_nonce().data()),
                wire::kNonceBytes, request.nonce.begin());
    transport::BatchMemory memory;
    EXPECT_EQ(control().rank_memories().AdmitBatch(request, kHoarder, memory),
              wire::LaneRefusal::kNone);
    return memory;
  }
  // A job of one rank runs and ends; its process keeps what it was given.
  std::vector<Descriptor> EndAndKeep(const std::string& job, std::uint64_t bytes = kRegionBytes) {
    const std::string session = Enter(0, 1, job);
    std::vector<Descriptor> kept;
    {
      const transport::BatchMemory memory = FetchBatch(session, 0, bytes);
      kept.push_back(Keep(memory.worker));
      kept.push_back(Keep(memory.parameters));
    }
    Leave(session);
    Settle();
    return kept;
  }
};

TEST_F(LeftMemoryTest, StaysChargedUntilNobodyUsesIt) {
  std::vector<Descriptor> kept = EndAndKeep("digits");
  const std::uint64_t parameters = 4032;
  EXPECT_EQ(control().memory_bytes(), kRegionBytes + parameters);
  EXPECT_EQ(control().tenants().UsageOf(kDefaultTenant).memory_bytes, kRegionBytes + parameters);
  EXPECT_EQ(control().tenants().UsageOf(kDefaultTenant).jobs, 0u);
  kept.pop_back();
  Advance(kSecond);
  EXPECT_EQ(control().memory_bytes(), kRegionBytes);
  kept.clear();
  Advance(kSecond);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(control().NextDeadline(), std::numeric_limits<TimeNs>::max());
}

TEST_F(LeftMemoryTest, ANewJobWaitsForItAndIsRefusedAfterAWhile) {
  std::vector<Descriptor> kept = EndAndKeep("hoard");
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.memory_bytes = kRegionBytes}});
  const auto refused = Join(JoinOf(0, 1, "next"));
  Advance(4 * kSecond);
  EXPECT_FALSE(refused->answered());
  Advance(2 * kSecond);
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused->message(), AllOf(HasSubstr("hoard (8.0 MiB)"), HasSubstr("unmap")));
  // Another one waits until the memory is returned.
  const auto waiting = Join(JoinOf(0, 1, "next"));
  Advance(kSecond);
  EXPECT_FALSE(waiting->answered());
  kept.clear();
  Advance(kSecond);
  EXPECT_TRUE(waiting->ok()) << waiting->message();
}

TEST_F(LeftMemoryTest, AJobThatIsTooLargeAnywayDoesNotWait) {
  const std::vector<Descriptor> kept = EndAndKeep("hoard");
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.memory_bytes = 1024}});
  const auto refused = Join(JoinOf(0, 1, "next"));
  EXPECT_EQ(refused->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LeftMemoryTest, JobsThatEndOneAfterAnotherNeverHoldMoreThanTheQuota) {
  constexpr std::uint64_t kQuota = 3 * kRegionBytes;
  control().tenants().SetTenant({.name = kDefaultTenant, .quota = {.memory_bytes = kQuota}});
  std::vector<std::vector<Descriptor>> kept;
  std::uint64_t held = 0;
  for (int i = 0; i < 10 && held + kRegionBytes < kQuota; ++i) {
    kept.push_back(EndAndKeep("hoard"));
    held += kRegionBytes;
    EXPECT_GE(control().tenants().UsageOf(kDefaultTenant).memory_bytes, held);
  }
  EXPECT_LE(control().memory_bytes(), kQuota);
  EXPECT_EQ(kept.size(), 2u);
  const std::string session = Enter(0, 1, "hoard");
  v1::AddKeysRequest add = Batch(session, 0, {Key("a", 1000)});
  add.set_shared_bytes(kRegionBytes);
  const auto call = AddKeys(add);
  Settle();
  EXPECT_EQ(call->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call->message(), HasSubstr("still use shared memory"));
}

TEST_F(LeftMemoryTest, AnEarlierProcessOfARankIsChargedBesideTheNewOne) {
  v1::JoinRequest request = JoinOf(0, 1);
  request.mutable_options()->set_on_loss(v1::LOSS_POLICY_WAIT);
  request.mutable_options()->set_wait_timeout_ns(60 * kSecond);
  request.mutable_options()->set_restart(true);
  const std::string session = EnterAs(request);
  std::vector<Descriptor> kept;
  kept.push_back(Keep(FetchBatch(session, 0, kRegionBytes).worker));
  const std::uint64_t before = control().memory_bytes();
  Die(session, 0, Rank{0});
  Settle();
  request.set_pid(4801);
  ReserveAs(request);
  Advance(kSecond);
  EXPECT_EQ(control().memory_bytes(), before);
  kept.clear();
  Advance(kSecond);
  EXPECT_EQ(control().memory_bytes(), before - kRegionBytes);
}

TEST_F(LeftMemoryTest, MemoryThatNobodyKeepsIsFreeAtOnce) {
  for (int i = 0; i < 50; ++i) {
    (void)EndAndKeep("digits");
    Advance(200 * kMillisecond);
    ASSERT_EQ(control().memory_bytes(), 0u);
  }
}

}  // namespace
}  // namespace phub::server
