// GetJob's report of a job's exchange between racks: measured and predicted.
#include "server/core/exchange/shard_exchange.h"
#include "tests/unit/server/control/held_background.h"
#include "tests/unit/server/control/rack_jobs_fixture.h"

namespace phub::server {
namespace {

class RackMeasuresTest : public RackJobsTest {
 protected:
  static constexpr std::uint64_t kBytes = 96 << 20;

  // The test acts as that rack's core loop, which writes these metrics.
  ExchangeMetrics& MetricsAt(std::uint32_t rack) {
    return node(rack).cores[0]->Executed(Command::Kind::kAddJob).back().shard->exchange->metrics;
  }
  v1::ExchangeInfo ShownAt(std::uint32_t rack) {
    v1::GetJobRequest request;
    request.set_job("digits");
    const auto call = node(rack).GetJob(request);
    EXPECT_TRUE(call->ok()) << call->message();
    return call->response.exchange();
  }
  static const v1::ExchangeSpan* SpanOf(const v1::ExchangeInfo& info, const std::string& stage,
                                        std::int32_t tree) {
    for (const v1::ExchangeSpan& span : info.spans()) {
      if (span.stage() == stage && span.tree() == tree) return &span;
    }
    return nullptr;
  }
  static void Exchange(SpanMeter& meter, DurationNs duration) {
    meter.Begin(5);
    meter.End(5 + duration, meter.exchange_bytes());
  }
};

TEST_F(RackMeasuresTest, NothingIsShownBeforeTheFirstKeys) {
  EnterAll();
  const v1::ExchangeInfo info = ShownAt(1);
  EXPECT_EQ(info.spans_size(), 0);
  EXPECT_EQ(info.predicted_exchange_ns(), 0);
  EXPECT_EQ(info.exchange_bytes(), 0u);
}

TEST_F(RackMeasuresTest, StagesAreShownBesideWhatTheSimulationSays) {
  EnterAll();
  ExchangeMetrics& metrics = MetricsAt(1);
  metrics.exchange_bytes.Add(kBytes);
  for (const std::size_t place : {0, 1}) {
    for (const ExchangeSpan span : {ExchangeSpan::kWhole, ExchangeSpan::kResult}) {
      metrics.trees[place][span].Extend(kBytes);
      Exchange(metrics.trees[place][span], 3000);
      Exchange(metrics.trees[place][span], 3800);
    }
  }
  const v1::ExchangeInfo info = ShownAt(1);
  EXPECT_EQ(info.exchange_bytes(), kBytes);
  // At least 1/3 of the bytes pass each of two links of 12.5 GB/s, which limits the speed.
  EXPECT_GT(info.predicted_exchange_ns(), static_cast<std::int64_t>(kBytes / 12.5 * 2 / 3));
  const v1::ExchangeSpan* const whole = SpanOf(info, "whole", -1);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->bytes(), kBytes);
  EXPECT_EQ(whole->exchanges(), 2u);
  EXPECT_EQ(whole->mean_ns(), 3400);
  EXPECT_EQ(whole->recent_ns(), 3100);
  EXPECT_GT(whole->predicted_ns(), 0);
  EXPECT_LE(whole->predicted_ns(), info.predicted_exchange_ns());
  ASSERT_NE(SpanOf(info, "result", 0), nullptr);
  EXPECT_LE(SpanOf(info, "result", 0)->predicted_ns(), whole->predicted_ns());
  EXPECT_EQ(SpanOf(info, "sums", -1), nullptr);  // no bytes passed that stage
  // Expect: the same answer, without a second simulation.
  EXPECT_EQ(ShownAt(1).SerializeAsString(), info.SerializeAsString());
}

// As when someone asks while keys are being added.
TEST_F(RackMeasuresTest, AStageThatIsNewIsPredictedToo) {
  EnterAll();
  ExchangeMetrics& metrics = MetricsAt(1);
  metrics.exchange_bytes.Add(kBytes);
  metrics.trees[0][ExchangeSpan::kResult].Extend(kBytes);
  const v1::ExchangeInfo before = ShownAt(1);
  metrics.trees[0][ExchangeSpan::kWhole].Extend(kBytes);
  const v1::ExchangeInfo after = ShownAt(1);
  ASSERT_NE(SpanOf(after, "whole", -1), nullptr);
  EXPECT_GE(SpanOf(after, "whole", -1)->predicted_ns(),
            SpanOf(after, "result", -1)->predicted_ns());
  EXPECT_GT(SpanOf(after, "result", -1)->predicted_ns(), 0);
  EXPECT_EQ(SpanOf(after, "result", -1)->predicted_ns(),
            SpanOf(before, "result", -1)->predicted_ns());
}

// A simulation may take long, and any rank of the job can change the size that is simulated.
TEST_F(RackMeasuresTest, NothingIsSimulatedUnderTheLock) {
  HeldBackground background;
  EnterAll();
  node(1).control().turns().SetBackground(background);
  ExchangeMetrics& metrics = MetricsAt(1);
  metrics.exchange_bytes.Add(kBytes);
  metrics.trees[0][ExchangeSpan::kWhole].Extend(kBytes);
  v1::GetJobRequest request;
  request.set_job("digits");
  const auto first = node(1).GetJob(request);
  EXPECT_FALSE(first->answered());
  ASSERT_TRUE(background.RunOne());
  ASSERT_TRUE(first->ok()) << first->message();
  EXPECT_GT(first->response.exchange().predicted_exchange_ns(), 0);
  // Expect: the same size is not simulated again.
  const auto second = node(1).GetJob(request);
  ASSERT_TRUE(second->ok()) << second->message();
  EXPECT_EQ(second->response.exchange().predicted_exchange_ns(),
            first->response.exchange().predicted_exchange_ns());
}

TEST_F(RackMeasuresTest, LanesToEveryNeighborAreShownAndKeptWhenTheJobIsOver) {
  EnterAll();
  ExchangeMetrics& metrics = MetricsAt(1);
  metrics.exchange_bytes.Add(100);
  metrics.links[0].partial_bytes_sent.Add(400);
  metrics.links[2].result_bytes_received.Add(500);
  metrics.links[2].message_wait_ns.Add(7);
  metrics.links[1].sums_last.Add(3);
  const v1::ExchangeInfo running = ShownAt(1);
  ASSERT_EQ(running.links_size(), 3);
  EXPECT_EQ(running.links(0).endpoint(), "node0:7700");
  EXPECT_EQ(running.links(0).partial_bytes_sent(), 400u);
  EXPECT_TRUE(running.links(1).self());
  EXPECT_EQ(running.links(1).sums_last(), 3u);
  EXPECT_EQ(running.links(2).result_bytes_received(), 500u);
  EXPECT_EQ(running.links(2).message_wait_ns(), 7u);
  Leave({0, 1, 2, 3, 4, 5});
  ExpectRunStateEverywhere("ended");
  ExpectNothingLeft();
  const v1::ExchangeInfo kept = ShownAt(1);
  ASSERT_EQ(kept.links_size(), 3);
  EXPECT_EQ(kept.links(0).SerializeAsString(), running.links(0).SerializeAsString());
  EXPECT_EQ(kept.exchange_bytes(), 100u);
  EXPECT_EQ(kept.racks_size(), 3);
}

}  // namespace
}  // namespace phub::server
