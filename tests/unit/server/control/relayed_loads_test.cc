#include "server/control/rpc/relayed_loads.h"

#include <gtest/gtest.h>

namespace phub::server {
namespace {

TEST(RelayedLoads, TheNewestOfAJobEndsTheOneBeforeOnce) {
  RelayedLoads loads;
  int older = 0, newer = 0, other = 0;  // their addresses identify the streams
  loads.Begin(Incarnation{1}, &older, [&] { ++older; });
  loads.Begin(Incarnation{2}, &other, [&] { ++other; });
  loads.Begin(Incarnation{1}, &newer, [&] {
    ++newer;
    loads.Over(Incarnation{1}, &newer);  // like a stream that is over at once
  });
  EXPECT_EQ(older, 1);
  EXPECT_EQ(newer + other, 0);
  loads.Over(Incarnation{1}, &older);  // no effect: it is not the newest
  int newest = 0;
  loads.Begin(Incarnation{1}, &newest, [&] { ++newest; });
  EXPECT_EQ(older, 1);
  EXPECT_EQ(newer, 1);
  loads.Over(Incarnation{1}, &newest);
  loads.Begin(Incarnation{1}, &older, [] {});
  EXPECT_EQ(newest + other, 0);
}

}  // namespace
}  // namespace phub::server
