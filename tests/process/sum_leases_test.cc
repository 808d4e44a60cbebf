// The daemon's end of leases (server/control/rpc/sum_leases.h) with a real phub-aggregator, which
// refuses, is killed, is stopped and forgets.
#include "server/control/rpc/sum_leases.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/aggregation/endpoint_text.h"
#include "common/base/status_text.h"
#include "tests/process/aggregator_process.h"

namespace phub::process {
namespace {

using aggregation::LeaseNumber;
using server::SumLeaseRequest;
using server::SumLeases;

SumLeaseRequest Request(std::uint32_t slots = 4) {
  return {.tenant = "team",
          .job = "resnet",
          .slot_count = slots,
          .count_max = 350,
          .core_loop = *aggregation::ParseEndpoint("127.0.0.1:9000"),
          .workers = {*aggregation::ParseEndpoint("127.0.0.1:9001"),
                      *aggregation::ParseEndpoint("127.0.0.1:9002")}};
}

class SumLeasesTest : public ::testing::Test {
 protected:
  struct Loss {
    LeaseNumber number;
    absl::Status why;
  };

  // `keep_alive` is long where nothing waits for it: then a slow machine loses no lease.
  void Serve(DurationNs keep_alive = 600 * kSecond, DurationNs call_timeout = 300 * kSecond,
             std::vector<std::string> arguments = {}) {
    aggregator_ = std::make_unique<AggregatorProcess>(std::move(arguments));
    leases_ =
        std::make_unique<SumLeases>(server::SumLeaseOptions{.aggregator = aggregator_->control(),
                                                            .keep_alive = keep_alive,
                                                            .renew_every = 20 * kMillisecond,
                                                            .call_timeout = call_timeout},
                                    clock_, [this](LeaseNumber number, const absl::Status& why) {
                                      const std::lock_guard lock(mutex_);
                                      losses_.push_back({number, why});
                                      lost_.notify_one();
                                    });
    ASSERT_TRUE(leases_->Start().ok());
  }
  absl::StatusOr<phub_lease> Grant(const SumLeaseRequest& request = Request()) {
    std::promise<absl::StatusOr<phub_lease>> granted;
    leases_->Grant(request, [&](const auto& lease) { granted.set_value(lease); });
    return granted.get_future().get();
  }
  // Asks again while the aggregator does not answer because this machine is slow.
  absl::StatusOr<phub_lease> GrantPatiently() {
    absl::StatusOr<phub_lease> lease = Grant();
    while (absl::IsUnavailable(lease.status())) lease = Grant();
    return lease;
  }
  Loss NextLoss() {
    std::unique_lock lock(mutex_);
    lost_.wait(lock, [this] { return !losses_.empty(); });
    Loss loss = losses_.front();
    losses_.pop_front();
    return loss;
  }

  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable lost_;
  std::deque<Loss> losses_;  // under mutex_
  std::unique_ptr<AggregatorProcess> aggregator_;
  std::unique_ptr<SumLeases> leases_;
};

TEST_F(SumLeasesTest, GrantsAndEnds) {
  Serve();
  const auto lease = Grant();
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(lease->slot_count, 4u);
  EXPECT_EQ(lease->worker_count, 2u);
  EXPECT_EQ(lease->count_max, 350u);
  EXPECT_EQ(aggregation::TextOf(lease->aggregator), aggregation::TextOf(aggregator_->endpoint()));
  EXPECT_EQ(aggregation::TextOf(lease->core_loop), "127.0.0.1:9000");
  EXPECT_EQ(aggregation::TextOf(lease->workers[1]), "127.0.0.1:9002");
  EXPECT_NE(lease->key.words[0], lease->key.words[1]);
  const v1::ListLeasesResponse list = aggregator_->List();
  ASSERT_EQ(list.leases_size(), 1);
  EXPECT_EQ(list.leases(0).number(), lease->number);
  EXPECT_EQ(list.leases(0).tenant(), "team");
  EXPECT_EQ(list.leases(0).job(), "resnet");
  leases_->End(LeaseNumber{lease->number});
  const auto next = Grant();  // made after the end
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(next->number, lease->number);
  EXPECT_EQ(aggregator_->List().leases_size(), 1);
}

TEST_F(SumLeasesTest, PassesOnTheAggregatorsRefusal) {
  Serve(600 * kSecond, 300 * kSecond, {"--pool", "4KiB"});
  const auto lease = Grant(Request(1000));
  ASSERT_FALSE(lease.ok());
  EXPECT_EQ(lease.status().code(), absl::StatusCode::kResourceExhausted) << lease.status();
  const std::string text(MessageOf(lease.status()));
  EXPECT_TRUE(text.starts_with("phub-aggregator at " + aggregator_->control())) << text;
  EXPECT_NE(text.find("pool"), std::string::npos) << text;
}

TEST_F(SumLeasesTest, LosesALeaseThatTheAggregatorDoesNotKnow) {
  Serve();
  const auto lost = Grant();
  ASSERT_TRUE(lost.ok()) << lost.status();
  ASSERT_TRUE(aggregator_->End(lost->number));
  const Loss loss = NextLoss();
  EXPECT_EQ(loss.number.value, lost->number);
  EXPECT_NE(loss.why.message().find("does not know lease"), std::string::npos) << loss.why;
}

TEST_F(SumLeasesTest, LosesLeasesAtOnceIfTheAggregatorIsKilled) {
  Serve();
  const auto lost = Grant();
  ASSERT_TRUE(lost.ok()) << lost.status();
  aggregator_->process().Signal(SIGKILL);
  const Loss loss = NextLoss();  // the keep-alive is 600 s
  EXPECT_EQ(loss.number.value, lost->number);
  EXPECT_EQ(loss.why.code(), absl::StatusCode::kUnavailable) << loss.why;
  const auto none = Grant();
  EXPECT_EQ(none.status().code(), absl::StatusCode::kUnavailable) << none.status();
  EXPECT_NE(none.status().message().find(aggregator_->control()), std::string::npos)
      << none.status();
  aggregator_->Restart();
  const auto next = Grant();  // at once, although the calls before failed
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GT(next->number, lost->number);
}

TEST_F(SumLeasesTest, LosesLeasesOfAnAggregatorThatDoesNotAnswer) {
  Serve(kSecond, 100 * kMillisecond);
  const auto lost = GrantPatiently();
  ASSERT_TRUE(lost.ok()) << lost.status();
  aggregator_->process().Signal(SIGSTOP);
  const Loss loss = NextLoss();
  EXPECT_EQ(loss.number.value, lost->number);
  EXPECT_EQ(loss.why.code(), absl::StatusCode::kUnavailable) << loss.why;
  EXPECT_EQ(Grant().status().code(), absl::StatusCode::kUnavailable);
  aggregator_->process().Signal(SIGCONT);
  const auto next = GrantPatiently();
  EXPECT_TRUE(next.ok()) << next.status();
}

// Otherwise the test would take 300 s. If the machine is slow, no call may be under way yet.
TEST_F(SumLeasesTest, StoppingCancelsTheCallUnderWay) {
  Serve();
  ASSERT_TRUE(Grant().ok());
  aggregator_->process().Signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // a renewal begins
  leases_->Grant(Request(), [](const auto& lease) { EXPECT_FALSE(lease.ok()); });
  leases_->Stop();
  aggregator_->process().Signal(SIGCONT);
}

}  // namespace
}  // namespace phub::process
