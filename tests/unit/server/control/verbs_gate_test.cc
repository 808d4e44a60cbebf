// What jobs have on RDMA devices: made known to them without holding anybody up.
#include "server/transports/verbs/verbs_gate.h"

#include <poll.h>

#include "tests/unit/server/control/control_fixture.h"
#include "tests/verbs/fake_verbs.h"

namespace phub::server {
namespace {

using ::testing::HasSubstr;

// The duration of a registration: much longer than anything else here, even on a busy host.
constexpr DurationNs kTime = 3 * kSecond;

class VerbsGateTest : public ControlTest {
 protected:
  explicit VerbsGateTest(std::size_t core_count = 1) : ControlTest(core_count) {
    fake_verbs::Reset();
    options.lane_transports = {{.name = "verbs", .slot_header_bytes = wire::kSlotHeaderBytes}};
    std::vector<std::shared_ptr<transport::VerbsQueue>> queues;
    for (std::size_t core = 0; core < core_count; ++core) {
      queues.push_back(
          transport::VerbsQueue::Create(transport::VerbsDevice::Open({}).value(), 1 << 16).value());
    }
    queue_ = queues.front();
    thread_ = std::make_unique<ControlThread>(control(), system_clock_);
    gate_ = std::make_unique<ControlVerbsGate>(*thread_, /*transport_index=*/2, std::move(queues),
                                               transport::VerbsLimits{});
    control().host_memory().SetMemoryListener(*gate_);
  }

  // Takes the lock, as gRPC's threads do.
  template <typename Function>
  void Locked(Function function) {
    thread_->Run([&](Control&) { function(); });
  }
  absl::StatusOr<transport::VerbsLaneParts> PartsOf(const std::string& session,
                                                    std::uint32_t core = 0) {
    const auto grants = OpenLanesOf(session);
    return gate_->Parts(HelloOf(grants->response, 0, core));
  }
  CallPtr<v1::JobInfo> Evict() {
    v1::EvictJobRequest request;
    request.set_job("digits");
    request.set_reason("a test");
    CallPtr<v1::JobInfo> evicted;
    Locked([&] { evicted = EvictJob(request); });
    Locked([&] { Advance(5 * kSecond); });
    return evicted;
  }
  // Runs control whenever its bell rings, until the call is answered.
  template <typename Response>
  void WaitForAnswer(const CallPtr<Response>& call, DurationNs patience = 20 * kSecond) {
    const TimeNs end = system_clock_.Now() + patience;
    while (!call->answered() && system_clock_.Now() < end) {
      pollfd bell{thread_->doorbell().descriptor(), POLLIN, 0};
      poll(&bell, 1, static_cast<int>(patience / kMillisecond));
      thread_->doorbell().Clear();
      Locked([&] { Settle(); });
    }
  }

  const SystemClock system_clock_;
  std::shared_ptr<transport::VerbsQueue> queue_;
  std::unique_ptr<ControlThread> thread_;
  std::unique_ptr<ControlVerbsGate> gate_;
};

TEST_F(VerbsGateTest, WhoAddsKeysWaitsForTheDeviceAndNobodyElseDoes) {
  const std::string session = Enter(0, 1);
  const auto parts = PartsOf(session);
  ASSERT_TRUE(parts.ok()) << parts.status();
  fake_verbs::TheDevice().register_time = kTime;
  const TimeNs begun = system_clock_.Now();
  CallPtr<v1::AddKeysResponse> call;
  Locked([&] { call = AddKeys(Batch(session, 0, {Key("weights", 1000)})); });
  Locked([&] { Settle(); });
  Locked([&] { Heartbeat(session); });
  CallPtr<v1::ListJobsResponse> other;
  Locked([&] { other = ListJobs({}); });
  EXPECT_LT(system_clock_.Now() - begun, kTime / 2);
  EXPECT_TRUE(other->ok());
  EXPECT_FALSE(call->answered());
  EXPECT_EQ(parts->domain->count(), 0u);
  WaitForAnswer(call);
  EXPECT_TRUE(call->ok()) << call->message();
  EXPECT_GE(system_clock_.Now() - begun, kTime);
  EXPECT_EQ(parts->domain->count(), 1u);
  EXPECT_GE(parts->domain->region(0).bytes, 4000u);
  // A repeated request, for a caller that missed the answer, succeeds.
  const auto again = AddKeys(Batch(session, 0, {Key("weights", 1000)}));
  Settle();
  EXPECT_TRUE(again->ok());
}

// verbs_devices = "mlx4_0:1,mlx4_0:2": each port is opened separately.
class TwoPortsTest : public VerbsGateTest {
 protected:
  TwoPortsTest() : VerbsGateTest(2) {}
};

TEST_F(TwoPortsTest, OneDeviceThatIsOpenTwiceHasADomainForEach) {
  const std::string session = Enter(0, 1);
  for (const std::uint32_t core : {0u, 1u}) {
    const auto parts = PartsOf(session, core);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(&parts->domain->device(), parts->queue->device().get());
  }
}

TEST_F(VerbsGateTest, KeysThatWereThereBeforeTheFirstLaneAreRegisteredForIt) {
  const std::string session = Enter(0, 1);
  // Answered, since there is no device to wait for.
  AddKeysOfAll({session}, {Key("weights", 1000)});
  fake_verbs::TheDevice().register_time = kTime;
  const TimeNs begun = system_clock_.Now();
  const auto parts = PartsOf(session);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_LT(system_clock_.Now() - begun, kTime / 2);
  while (parts->domain->count() == 0 && system_clock_.Now() < begun + 20 * kSecond) {
    poll(nullptr, 0, 1);
  }
  EXPECT_EQ(parts->domain->count(), 1u);
}

TEST_F(VerbsGateTest, JobThatEndsMeanwhileWaitsForNoDevice) {
  const std::string session = Enter(0, 1);
  auto parts = PartsOf(session);
  ASSERT_TRUE(parts.ok()) << parts.status();
  fake_verbs::TheDevice().register_time = kTime;
  CallPtr<v1::AddKeysResponse> call;
  Locked([&] { call = AddKeys(Batch(session, 0, {Key("weights", 1000), Key("bias", 10)})); });
  const TimeNs end = system_clock_.Now() + 20 * kSecond;
  while (fake_verbs::TheDevice().registrations == 0 && system_clock_.Now() < end) {
    poll(nullptr, 0, 1);
  }
  const TimeNs begun = system_clock_.Now();
  const CallPtr<v1::JobInfo> evicted = Evict();
  EXPECT_FALSE(call->ok());
  EXPECT_LT(system_clock_.Now() - begun, kTime / 2);
  // The job's memory stays allocated and reserved until the device has released it. Then nothing
  // remains.
  EXPECT_FALSE(evicted->answered());
  EXPECT_GT(control().memory_bytes(), 4000u);
  v1::GetJobRequest question;
  question.set_job("digits");
  EXPECT_GT(GetJob(question)->response.memory_bytes(), 4000u);
  *parts = {};
  WaitForAnswer(evicted);
  EXPECT_TRUE(evicted->ok()) << evicted->message();
  EXPECT_EQ(evicted->response.memory_bytes(), 0u);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(fake_verbs::TheDevice().registrations, 1u);
  EXPECT_EQ(fake_verbs::TheDevice().regions, 0u);
}

// For example a lane that was offered, but that its client does not confirm.
TEST_F(VerbsGateTest, MemoryOfALaneThatIsNoneYetIsItsTenantsUntilItIsUnpinnedElsewhere) {
  const std::string session = Enter(0, 1);
  auto parts = PartsOf(session);
  ASSERT_TRUE(parts.ok()) << parts.status();
  CallPtr<v1::AddKeysResponse> call;
  Locked([&] { call = AddKeys(Batch(session, 0, {Key("weights", 1000)})); });
  WaitForAnswer(call);
  ASSERT_EQ(fake_verbs::TheDevice().regions, 1u);
  const CallPtr<v1::JobInfo> evicted = Evict();
  WaitForAnswer(evicted, 200 * kMillisecond);
  EXPECT_FALSE(evicted->answered());
  EXPECT_GT(control().memory_bytes(), 4000u);
  EXPECT_EQ(fake_verbs::TheDevice().regions, 1u);
  fake_verbs::TheDevice().unregister_time = kTime;
  const TimeNs begun = system_clock_.Now();
  *parts = {};
  EXPECT_LT(system_clock_.Now() - begun, kTime / 2);
  WaitForAnswer(evicted);
  EXPECT_TRUE(evicted->ok()) << evicted->message();
  EXPECT_GE(system_clock_.Now() - begun, kTime);
  EXPECT_EQ(control().memory_bytes(), 0u);
  EXPECT_EQ(fake_verbs::TheDevice().regions, 0u);
}

TEST_F(VerbsGateTest, DomainMayOutliveTheGate) {
  const std::string session = Enter(0, 1);
  auto parts = PartsOf(session);
  ASSERT_TRUE(parts.ok()) << parts.status();
  AddKeys(Batch(session, 0, {Key("weights", 1000)}));
  gate_.reset();
  *parts = {};
  EXPECT_EQ(fake_verbs::TheDevice().regions, 0u);
}

TEST_F(VerbsGateTest, NoLaneIsMadeOnADeviceThatIsLost) {
  const std::string session = Enter(0, 1);
  queue_->Break("a test", 5);
  const auto parts = PartsOf(session);
  ASSERT_FALSE(parts.ok());
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("RDMA device fake0 was lost"));
}

}  // namespace
}  // namespace phub::server
