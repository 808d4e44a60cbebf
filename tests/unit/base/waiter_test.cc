#include "common/base/waiter.h"

#include <gtest/gtest.h>

#include <thread>

namespace phub {
namespace {

TEST(Waiter, TimesOutWhenNothingHappens) {
  const Doorbell bell;
  Waiter waiter;
  waiter.Add(bell.descriptor());
  const SystemClock clock;
  const TimeNs start = clock.Now();
  EXPECT_FALSE(waiter.Wait(0));
  EXPECT_FALSE(waiter.Wait(20 * kMillisecond));
  EXPECT_GE(clock.Now() - start, 19 * kMillisecond);
}

TEST(Waiter, WaitsForLessThanAMillisecond) {
  Waiter waiter;
  const SystemClock clock;
  const TimeNs start = clock.Now();
  EXPECT_FALSE(waiter.Wait(300 * kMicrosecond));
  EXPECT_GE(clock.Now() - start, 300 * kMicrosecond);
}

TEST(Waiter, TellsWhichOneIsReadableAndIgnoresTheOneThatItIsToldToIgnore) {
  const Doorbell rung;
  const Doorbell silent;
  Waiter waiter;
  waiter.Add(rung.descriptor());
  waiter.Add(silent.descriptor());
  rung.Ring();
  EXPECT_TRUE(waiter.Wait(kMillisecond, silent.descriptor()));
  EXPECT_TRUE(waiter.IsReadable(rung.descriptor()));
  EXPECT_FALSE(waiter.IsReadable(silent.descriptor()));
  EXPECT_FALSE(waiter.Wait(kMillisecond, rung.descriptor()));
  EXPECT_FALSE(waiter.IsReadable(rung.descriptor()));
  EXPECT_TRUE(waiter.Wait(kMillisecond));
  silent.Ring();
  EXPECT_TRUE(waiter.Wait(kMillisecond, rung.descriptor()));
}

TEST(Waiter, ARungBellIsReadableUntilCleared) {
  const Doorbell bell;
  Waiter waiter;
  waiter.Add(bell.descriptor());
  bell.Ring();
  bell.Ring();
  EXPECT_TRUE(waiter.Wait(0));
  EXPECT_TRUE(waiter.Wait(-1));  // waiting does not clear the bell
  bell.Clear();                  // one call clears both rings
  EXPECT_FALSE(waiter.Wait(0));
  bell.Clear();  // clearing a bell that does not ring does not block
  EXPECT_FALSE(waiter.Wait(0));
}

TEST(Waiter, AnyOfItsDescriptorsWakesIt) {
  const Doorbell bells[3];
  Waiter waiter;
  for (const Doorbell& bell : bells) waiter.Add(bell.descriptor());
  for (const Doorbell& bell : bells) {
    EXPECT_FALSE(waiter.Wait(0));
    bell.Ring();
    EXPECT_TRUE(waiter.Wait(0));
    bell.Clear();
  }
}

// Neither side may miss the other: a lost wake-up makes this test hang.
TEST(Waiter, TwoThreadsWakeEachOtherInTurn) {
  constexpr int kTurns = 1000;
  const Doorbell ping;
  const Doorbell pong;
  std::thread other([&] {
    Waiter waiter;
    waiter.Add(ping.descriptor());
    for (int i = 0; i < kTurns; ++i) {
      EXPECT_TRUE(waiter.Wait(-1));
      ping.Clear();
      pong.Ring();
    }
  });
  Waiter waiter;
  waiter.Add(pong.descriptor());
  for (int i = 0; i < kTurns; ++i) {
    ping.Ring();
    EXPECT_TRUE(waiter.Wait(-1));
    pong.Clear();
  }
  other.join();
}

}  // namespace
}  // namespace phub
