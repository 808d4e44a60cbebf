#include "server/metrics/exchange_metrics.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

TEST(SpanMeter, ChunksThatOverlapCountOnce) {
  SpanMeter meter;
  meter.Extend(300);
  meter.Begin(1000);
  meter.Begin(1010);
  meter.End(1050, 100);
  meter.End(1100, 100);
  // The stage is empty, so this time is not counted.
  meter.Begin(5000);
  EXPECT_EQ(meter.exchanges(), 0u);
  meter.End(5030, 100);
  EXPECT_EQ(meter.exchanges(), 1u);
  EXPECT_EQ(meter.busy_ns(), 130u);
  EXPECT_EQ(meter.recent_ns(), 130u);
}

TEST(SpanMeter, TheNewestExchangeCountsAnEighthOfWhatIsRecent) {
  SpanMeter meter;
  meter.Extend(10);
  for (const TimeNs duration : {1000, 1800, 300}) {
    meter.Begin(7);
    meter.End(7 + duration, 10);
  }
  EXPECT_EQ(meter.exchanges(), 3u);
  EXPECT_EQ(meter.busy_ns(), 3100u);
  EXPECT_EQ(meter.recent_ns(), 1000u + 100 - (1100 - 300) / 8);
}

TEST(SpanMeter, NoTimeIsLostWhereBytesAreNoWholeExchanges) {
  SpanMeter meter;
  meter.Extend(100);
  TimeNs now = 0;
  for (int i = 0; i < 5; ++i) {
    meter.Begin(now);
    meter.End(now + 60, 60);
    now += 1000;
  }
  // Expect: 300 bytes are three exchanges of one nanosecond per byte, wherever they end.
  EXPECT_EQ(meter.exchanges(), 3u);
  EXPECT_EQ(meter.busy_ns(), 300u);
  EXPECT_EQ(meter.recent_ns(), 100u);
}

TEST(SpanMeter, MoreKeysMakeALargerExchange) {
  SpanMeter meter;
  meter.Extend(100);
  meter.Begin(0);
  meter.End(50, 100);
  meter.Extend(100);
  meter.Begin(100);
  meter.End(150, 100);
  EXPECT_EQ(meter.exchanges(), 1u);
  meter.Begin(150);
  meter.End(220, 100);
  EXPECT_EQ(meter.exchanges(), 2u);
  EXPECT_EQ(meter.busy_ns(), 50u + 120);
  EXPECT_EQ(meter.exchange_bytes(), 200u);
}

}  // namespace
}  // namespace phub::server
