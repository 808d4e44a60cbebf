#include "server/control/rpc/event_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace phub::server {
namespace {

v1::SessionEvent Heartbeat(std::uint64_t sequence) {
  v1::SessionEvent event;
  event.mutable_heartbeat()->set_sequence(sequence);
  return event;
}
v1::SessionEvent Saved(const std::string& directory) {
  v1::SessionEvent event;
  event.mutable_saved()->set_directory(directory);
  return event;
}
v1::SessionEvent Awaited(std::uint32_t rank, const std::string& host) {
  v1::SessionEvent event;
  event.mutable_awaited()->set_rank(rank);
  event.mutable_awaited()->set_host(host);
  return event;
}
v1::SessionEvent Returned(std::uint32_t rank, bool restarted) {
  v1::SessionEvent event;
  event.mutable_returned()->set_rank(rank);
  event.mutable_returned()->set_restarted(restarted);
  return event;
}
v1::SessionEvent Failed(const std::string& why) {
  v1::SessionEvent event;
  event.mutable_job_failed()->mutable_fault()->set_message(why);
  return event;
}

TEST(EventQueue, KeepsTheNewestEventOfEachKind) {
  EventQueue queue;
  EXPECT_TRUE(queue.empty());
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(queue.Push(Heartbeat(i)), i > 0);
    EXPECT_EQ(queue.Push(Saved("/" + std::to_string(i))), i > 0);
    EXPECT_EQ(queue.Push(Awaited(7, "node" + std::to_string(i))), i > 0);
  }
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_EQ(queue.Pop().saved().directory(), "/999");
  EXPECT_EQ(queue.Pop().awaited().host(), "node999");
  EXPECT_EQ(queue.Pop().heartbeat().sequence(), 999u);
  EXPECT_TRUE(queue.empty());
  EXPECT_FALSE(queue.Push(Heartbeat(1)));  // nothing waits, so nothing is replaced
}

TEST(EventQueue, KeepsTheLatestStateOfEachRank) {
  EventQueue queue;
  queue.Push(Awaited(3, "c"));
  queue.Push(Awaited(5, "e"));
  EXPECT_TRUE(queue.Push(Returned(3, true)));
  EXPECT_TRUE(queue.Push(Awaited(3, "c2")));
  EXPECT_TRUE(queue.Push(Returned(3, false)));
  EXPECT_EQ(queue.size(), 2u);
  const v1::SessionEvent third = queue.Pop();
  EXPECT_EQ(third.returned().rank(), 3u);
  EXPECT_TRUE(third.returned().restarted());  // one of the returns was a takeover
  EXPECT_EQ(queue.Pop().awaited().host(), "e");
  EXPECT_TRUE(queue.empty());
}

TEST(EventQueue, SendsTheFailureAfterTheSavedStateAndWithoutRanks) {
  EventQueue queue;
  queue.Push(Awaited(3, "c"));
  queue.Push(Heartbeat(1));
  queue.Push(Failed("rank 3 died"));
  queue.Push(Saved("/s"));
  EXPECT_TRUE(queue.Pop().has_saved());
  EXPECT_EQ(queue.Pop().job_failed().fault().message(), "rank 3 died");
  EXPECT_TRUE(queue.Pop().has_heartbeat());
  EXPECT_TRUE(queue.empty());
}

}  // namespace
}  // namespace phub::server
