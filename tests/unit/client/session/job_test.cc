#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "common/base/descriptor.h"
#include "common/transport/shm/shm_address.h"
#include "common/wire/lane_hello.h"
#include "common/wire/message.h"
#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

class JobTest : public ::testing::Test {
 protected:
  void Join(const FakeDaemonOptions& options = {}, JobOptions job_options = {}) {
    rack_ = std::make_unique<FakeRack>(std::vector<std::uint32_t>{options.core_count}, options);
    daemon_ = &(*rack_)[0];
    job_options.job = "digits";
    auto job = rack_->Join(job_options);
    job_.emplace(*std::move(job));  // aborts with the reason if the join failed
  }
  Key Add(const std::string& name, std::uint64_t count, const KeyOptions& options = {}) {
    auto key = job_->AddKey(name, f32, count, None{}, options);
    EXPECT_TRUE(key.ok()) << ToString(key.status());
    return *key;
  }
  std::unique_ptr<FakeRack> rack_;
  FakeDaemon* daemon_ = nullptr;
  std::optional<Job> job_;
};

TEST_F(JobTest, PushPullBringsWhatTheDaemonMadeOfTheGradients) {
  Join();
  Key key = Add("fc1.weight", 1000);  // 16 chunks on two cores, the last one short
  for (int round = 1; round <= 20; ++round) {
    const std::span<float> gradients = key.gradients<float>();
    std::iota(gradients.begin(), gradients.end(), static_cast<float>(round));
    const Status status = key.PushPull().Wait();
    ASSERT_TRUE(status.ok()) << ToString(status);
    ASSERT_TRUE(std::equal(gradients.begin(), gradients.end(), key.parameters<float>().begin()));
    EXPECT_EQ(key.iteration(), static_cast<std::uint64_t>(round));
  }
}

TEST_F(JobTest, JoinTellsTheDaemonWhoComes) {
  Join({}, {.rank = 2, .world_size = 4, .chunk_bytes = 512, .staging_bytes = 4096});
  const v1::JoinRequest request = daemon_->join_request();
  EXPECT_EQ(request.job(), "digits");
  EXPECT_EQ(request.rank(), 2u);
  EXPECT_EQ(request.options().world_size(), 4u);
  EXPECT_EQ(request.options().chunk_bytes(), 512u);
  EXPECT_EQ(request.options().staging_bytes_per_lane(), 4096u);
  EXPECT_FALSE(request.host().empty());
  EXPECT_EQ(job_->rank(), 2u);
  EXPECT_EQ(job_->world_size(), 4u);
  EXPECT_TRUE(job_->created());
}

// Accepts requests for lanes in shared memory one after the other, and answers none.
class DeafSocket {
 public:
  DeafSocket() : socket_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    const transport::ShmAddress address(name());
    EXPECT_EQ(bind(socket_.get(), address.get(), address.bytes), 0);
    EXPECT_EQ(listen(socket_.get(), 8), 0);
    thread_ = std::thread([this] { Listen(); });
  }
  ~DeafSocket() {
    shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  std::string name() const { return "phub-deaf-" + std::to_string(getpid()); }
  std::vector<wire::Nonce> nonces() {
    const std::lock_guard lock(mutex_);
    return nonces_;
  }

 private:
  void Listen() {
    for (;;) {
      const Descriptor peer(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer) return;
      std::array<std::byte, wire::kLaneHelloBytes> bytes;
      wire::LaneHello hello;
      const ssize_t got = recv(peer.get(), bytes.data(), bytes.size(), 0);
      EXPECT_EQ(got, static_cast<ssize_t>(bytes.size()));
      EXPECT_TRUE(wire::DecodeLaneHello(bytes, hello));
      const std::lock_guard lock(mutex_);
      nonces_.push_back(hello.nonce);
    }
  }
  const Descriptor socket_;
  std::mutex mutex_;
  std::vector<wire::Nonce> nonces_;
  std::thread thread_;
};

TEST_F(JobTest, ANonceThatWasSaidOneWayIsNotUsedForAnother) {
  DeafSocket deaf;
  Join({.core_count = 3, .shared_memory_name = deaf.name()});
  std::vector<wire::Nonce> seen = deaf.nonces();
  EXPECT_THAT(seen, SizeIs(3));
  // Expect: lanes over tcp, each with a nonce that was not sent before.
  const std::vector<wire::Nonce> used = daemon_->nonces();
  EXPECT_THAT(used, SizeIs(3));
  for (const wire::Nonce& nonce : used) EXPECT_THAT(seen, Not(Contains(nonce)));
}

TEST_F(JobTest, PushPullOfOtherMemoryLeavesTheKeysOwnAlone) {
  Join();
  Key key = Add("w", 100);
  const std::vector<float> gradients(100, 3.0f);
  std::vector<float> parameters(100, 0.0f);
  ASSERT_TRUE(key.PushPull(gradients, parameters).Wait().ok());
  EXPECT_THAT(parameters, Each(3.0f));
  EXPECT_THAT(key.parameters<float>(), Each(0.0f));
}

TEST_F(JobTest, KeyUsesTheMemoryItWasGiven) {
  Join();
  std::vector<float> gradients(100, 5.0f);
  std::vector<float> parameters(100, 0.0f);
  Key key = Add("w", 100, {.gradients = gradients, .parameters = parameters});
  EXPECT_EQ(key.gradients<float>().data(), gradients.data());
  ASSERT_TRUE(key.PushPull().Wait().ok());
  EXPECT_THAT(parameters, Each(5.0f));
}

TEST_F(JobTest, MemoryOfAWrongSizeOrThatOverlapsIsRefused) {
  Join();
  Key key = Add("w", 100);
  std::vector<float> memory(150);
  const std::span<float> all(memory);
  EXPECT_EQ(key.PushPull(all, key.mutable_parameters()).Wait().code(),
            StatusCode::kInvalidArgument);
  const Status overlap = key.PushPull(all.first(100), all.last(100)).Wait();
  EXPECT_EQ(overlap.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(overlap.message(), HasSubstr("overlap"));
  EXPECT_EQ(daemon_->gradient_count(), 0);
}

TEST_F(JobTest, SecondPushOfARoundUnderWayIsRefusedByName) {
  Join();
  Key key = Add("fc1.weight", 10);
  daemon_->HoldReplies(true);
  const Handle first = key.PushPull();
  const Handle second = key.PushPull();
  EXPECT_TRUE(second.Test());
  const Status refused = second.Wait();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("fc1.weight"));
  daemon_->HoldReplies(false);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_TRUE(key.PushPull().Wait().ok());
}

TEST_F(JobTest, WaitWithTimeoutSaysWhenItIsUpAndTheRoundGoesOn) {
  Join();
  Key key = Add("w", 10);
  daemon_->HoldReplies(true);
  const Handle handle = key.PushPull();
  EXPECT_FALSE(handle.Test());
  const Status late = handle.Wait(milliseconds(20));
  EXPECT_EQ(late.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("key w"));
  daemon_->HoldReplies(false);
  EXPECT_TRUE(handle.Wait(std::chrono::nanoseconds::max()).ok());
  EXPECT_TRUE(handle.Test());
}

TEST_F(JobTest, PullWaitsForTheLastPush) {
  Join();
  Key key = Add("w", 10);
  EXPECT_EQ(key.Pull().Wait().code(), StatusCode::kFailedPrecondition);
  std::fill(key.gradients<float>().begin(), key.gradients<float>().end(), 4.0f);
  daemon_->HoldReplies(true);
  key.Push();
  const Handle pulled = key.Pull();
  EXPECT_FALSE(pulled.Test());
  daemon_->HoldReplies(false);
  EXPECT_TRUE(pulled.Wait().ok());
  EXPECT_THAT(key.parameters<float>(), Each(4.0f));
  EXPECT_TRUE(key.Pull().Test());
}

TEST_F(JobTest, CancelWithdrawsWhatWaitsForASlotAndNotWhatIsUnderWay) {
  Join({.core_count = 1, .slots_per_lane = 1});
  Key first = Add("first", 10);
  Key second = Add("second", 10);
  daemon_->HoldReplies(true);
  const Handle sent = first.PushPull();
  while (daemon_->gradient_count() == 0) std::this_thread::yield();
  const Handle waiting = second.PushPull();
  EXPECT_EQ(sent.Cancel().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(waiting.Cancel().ok());
  EXPECT_TRUE(waiting.Cancel().ok());  // any number of times
  EXPECT_EQ(waiting.Wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(second.Pull().Wait().code(), StatusCode::kFailedPrecondition);
  daemon_->HoldReplies(false);
  EXPECT_TRUE(sent.Wait().ok());
  EXPECT_EQ(sent.Cancel().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(second.PushPull().Wait().ok());
  EXPECT_EQ(second.iteration(), 1u);
  EXPECT_EQ(waiting.Wait().code(), StatusCode::kCancelled);
}

TEST_F(JobTest, InitializeAndBroadcastAreRounds) {
  Join();
  Key key = Add("w", 100);
  const std::vector<float> initial(100, 0.5f);
  ASSERT_TRUE(job_->Initialize(key, initial).ok());
  EXPECT_THAT(key.parameters<float>(), Each(0.5f));
  key.mutable_parameters().As<float>()[7] = 9.0f;
  ASSERT_TRUE(job_->Broadcast(key, 0).Wait().ok());
  EXPECT_FLOAT_EQ(key.parameters<float>()[7], 9.0f);
  EXPECT_EQ(key.iteration(), 2u);
  EXPECT_EQ(job_->Initialize(key, std::span(initial).first(3)).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(job_->Broadcast(key, 1).Wait().code(), StatusCode::kInvalidArgument);
}

TEST_F(JobTest, TensorsOfABundleLieEndToEndInTheKey) {
  Join();
  const std::uint64_t tensors[] = {64, 3, 200};
  auto bundle = job_->AddBundle("block", f32, tensors, None{});
  ASSERT_TRUE(bundle.ok()) << ToString(bundle.status());
  EXPECT_EQ(bundle->element_count(), 267u);
  ASSERT_EQ(bundle->tensor_count(), 3u);
  EXPECT_EQ(bundle->tensor(1).gradients.As<float>().data(), bundle->gradients<float>().data() + 64);
  EXPECT_EQ(bundle->tensor(2).parameters.data, bundle->parameters<float>().data() + 67);
  std::fill_n(bundle->tensor(1).gradients.As<float>().begin(), 3, 8.0f);
  ASSERT_TRUE(bundle->PushPull().Wait().ok());
  EXPECT_THAT(bundle->tensor(1).parameters.As<float>(), ElementsAre(8.0f, 8.0f, 8.0f));
  EXPECT_THAT(bundle->tensor(2).parameters.As<float>(), Each(0.0f));
}

TEST_F(JobTest, KeysOfOneCallAreOneRoundTrip) {
  Join();
  const KeySpec specs[] = {
      {.name = "a", .element_count = 4, .optimizer = Sgd{.learning_rate = 0.5}},
      {.name = "b", .element_count = 8},
      {.name = "c", .optimizer = Momentum{.momentum = 0.9}, .tensors = {2, 3}}};
  auto keys = job_->AddKeys(specs);
  ASSERT_TRUE(keys.ok()) << ToString(keys.status());
  ASSERT_THAT(*keys, SizeIs(3));
  const auto requests = daemon_->add_keys_requests();
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_EQ(requests[0].keys(0).operation(), v1::OPERATION_MEAN);
  EXPECT_EQ(requests[0].keys(0).hyper_parameters().learning_rate(), 0.5);
  EXPECT_EQ(requests[0].keys(1).operation(), v1::OPERATION_SUM);
  EXPECT_EQ(requests[0].keys(2).optimizer(), v1::OPTIMIZER_MOMENTUM);
  EXPECT_EQ(requests[0].keys(2).element_count(), 5u);
  ASSERT_TRUE(job_->AddKey("d", f32, 1, None{}).ok());
  EXPECT_EQ(daemon_->add_keys_requests()[1].batch(), 1u);
}

TEST_F(JobTest, WrongKeysAreRefusedWithoutAskingTheDaemon) {
  Join();
  Add("taken", 4);
  std::vector<float> three(3);
  const KeySpec wrong[] = {
      {.name = "", .element_count = 4},
      {.name = std::string(256, 'x'), .element_count = 4},
      {.name = "empty", .element_count = 0},
      {.name = "sums", .element_count = 4, .tensors = {2, 3}},
      {.name = "hole", .tensors = {2, 0}},
      {.name = "memory", .element_count = 4, .options = {.gradients = three}},
      {.name = "nan", .element_count = 4, .optimizer = Sgd{.learning_rate = NAN}},
      {.name = "huge", .element_count = UINT64_MAX},
      {.name = "overflow", .tensors = {UINT64_MAX, UINT64_MAX}},
      {.name = "taken", .element_count = 4},
  };
  for (const KeySpec& spec : wrong) {
    const auto keys = job_->AddKeys({&spec, 1});
    EXPECT_FALSE(keys.ok()) << spec.name;
    EXPECT_THAT(keys.status().message(), HasSubstr(spec.name.substr(0, 60)));
  }
  EXPECT_THAT(daemon_->add_keys_requests(), SizeIs(1));
}

TEST_F(JobTest, HyperParametersAreAnnouncedOnceBeforeTheNextPush) {
  Join({.core_count = 1});
  auto key = job_->AddKey("w", f32, 10, Sgd{.learning_rate = 0.1});
  ASSERT_TRUE(key.ok());
  ASSERT_TRUE(key->SetHyperParameters(Sgd{.learning_rate = 0.2}).ok());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  ASSERT_TRUE(key->SetHyperParameters(Sgd{.learning_rate = 0.2}).ok());
  ASSERT_TRUE(key->PushPull().Wait().ok());
  const auto records = daemon_->records();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].learning_rate, 0.2);
  EXPECT_EQ(key->SetHyperParameters(Momentum{}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(key->SetHyperParameters(Sgd{.learning_rate = INFINITY}).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(JobTest, BarrierReturnsWhenTheDaemonSaysSo) {
  Join();
  daemon_->HoldBarrier(true);
  std::thread opener([this] {
    std::this_thread::sleep_for(milliseconds(30));
    daemon_->HoldBarrier(false);
  });
  EXPECT_TRUE(job_->Barrier().ok());
  opener.join();
}

TEST_F(JobTest, LeavingLetsRoundsCompleteAndIsSaidOnce) {
  Join();
  Key key = Add("w", 10);
  daemon_->HoldReplies(true);
  const Handle handle = key.PushPull();
  std::thread opener([this] {
    std::this_thread::sleep_for(milliseconds(50));
    daemon_->HoldReplies(false);
  });
  EXPECT_TRUE(job_->Leave().ok());
  opener.join();
  EXPECT_TRUE(handle.Wait().ok());
  EXPECT_TRUE(job_->Leave().ok());
  EXPECT_EQ(daemon_->left_count(), 1);
  EXPECT_EQ(key.PushPull().Wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(job_->Barrier().code(), StatusCode::kCancelled);
  EXPECT_FALSE(job_->AddKey("late", f32, 1, None{}).ok());
}

TEST_F(JobTest, LeavingGivesUpOnARoundThatDoesNotComplete) {
  Join({}, {.leave_timeout = milliseconds(30)});
  Key key = Add("stuck", 10);
  daemon_->HoldReplies(true);
  const Handle handle = key.PushPull();
  const Status left = job_->Leave();
  EXPECT_EQ(left.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(left.message(), HasSubstr("stuck"));
  EXPECT_EQ(handle.Wait().code(), StatusCode::kCancelled);
  EXPECT_EQ(daemon_->left_count(), 1);
}

TEST_F(JobTest, DestructorLeavesAndKeysAndHandlesOutliveIt) {
  Join();
  Key key = Add("w", 10);
  std::fill(key.gradients<float>().begin(), key.gradients<float>().end(), 2.0f);
  const Handle handle = key.PushPull();
  job_.reset();
  EXPECT_EQ(daemon_->left_count(), 1);
  EXPECT_TRUE(handle.Wait().ok());
  EXPECT_THAT(key.parameters<float>(), Each(2.0f));
}

TEST_F(JobTest, ManyThreadsPushTheirOwnKeys) {
  Join();
  std::vector<Key> keys;
  for (int k = 0; k < 4; ++k) keys.push_back(Add(std::to_string(k), 500));
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([key = keys[static_cast<std::size_t>(k)], k]() mutable {
      for (int i = 1; i <= 50; ++i) {
        const std::span<float> gradients = key.gradients<float>();
        std::fill(gradients.begin(), gradients.end(), static_cast<float>(100 * k + i));
        const Status status = key.PushPull().Wait();
        ASSERT_TRUE(status.ok()) << ToString(status);
        ASSERT_THAT(key.parameters<float>(), Each(static_cast<float>(100 * k + i)));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace phub::client
