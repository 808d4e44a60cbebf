#include "client/cli/dump_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"

namespace phub::client::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::RankDump& AddRank(v1::JobDump& dump, std::uint32_t rank, bool answered = true) {
  v1::RankDump& added = *dump.add_ranks();
  added.set_rank(rank);
  added.set_host("node" + std::to_string(rank));
  added.set_pid(4700 + rank);
  added.set_state("live");
  added.set_answered(answered);
  if (!answered) added.set_problem("did not answer within 2.0 s");
  return added;
}

void AddRound(v1::RankDump& rank, const std::string& key, std::uint64_t iteration) {
  v1::OpenRound& round = *rank.mutable_record()->add_rounds();
  round.set_key(key);
  round.set_iteration(iteration);
  round.set_operation("reduce");
  round.set_waiting_ns(3 * kSecond);
  rank.mutable_record()->set_round_count(rank.record().round_count() + 1);
}

void AddStall(v1::JobDump& dump, const std::string& key, std::uint64_t iteration,
              std::uint32_t missing) {
  v1::Stall& stall = *dump.add_stalls();
  stall.set_key(key);
  stall.set_iteration(iteration);
  stall.set_since_ns(3 * kSecond);
  stall.add_waiting_for()->set_rank(missing);
}

v1::JobDump NewDump() {
  v1::JobDump dump;
  dump.set_tenant("default");
  dump.set_job("digits");
  dump.set_world_size(3);
  return dump;
}

TEST(DumpText, SaysWhoWaitsForWhomAndWhatTheLateRankDoes) {
  v1::JobDump dump = NewDump();
  for (const std::uint32_t rank : {0u, 1u}) {
    v1::RankDump& added = AddRank(dump, rank);
    AddRound(added, "fc1", 412);
    AddRound(added, "fc2", 412);
  }
  AddRank(dump, 2, /*answered=*/false).set_last_heartbeat_age_ns(3100 * kMillisecond);
  AddStall(dump, "fc1", 412, 2);
  AddStall(dump, "fc2", 412, 2);
  const std::string text = DumpText(dump, false);
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("job default/digits: 3 ranks\n"),
          HasSubstr("  ranks 0, 1 wait for rank 2 in 2 rounds, the oldest key fc1, iteration 412, "
                    "for 3.0 s\n"),
          HasSubstr("  rank 2 (node2, pid 4702) did not answer within 2.0 s; its last heartbeat "
                    "was 3.1 s ago\n"),
          HasSubstr("rank 0 (node0, pid 4700): waits in 2 rounds, the oldest key fc1, iteration "
                    "412, for 3.0 s\n"),
          HasSubstr("  round key fc2, iteration 412 (reduce), for 3.0 s\n")));
}

TEST(DumpText, NamesBothSidesOfACrossedWait) {
  v1::JobDump dump = NewDump();
  AddRound(AddRank(dump, 0), "x", 1);
  v1::RankDump& second = AddRank(dump, 1);
  AddRound(second, "y", 1);
  second.mutable_record()->set_headline("waits in operation 7, all_reduce");
  AddStall(dump, "x", 1, 1);
  AddStall(dump, "y", 1, 0);
  v1::Stall& across = *dump.add_stalls();
  across.set_key("z");
  across.set_iteration(1);
  across.set_since_ns(2 * kSecond);
  across.set_waits_for_racks(true);
  EXPECT_THAT(
      DumpText(dump, false),
      AllOf(HasSubstr("  rank 0 waits for rank 1 in key x, iteration 1, for 3.0 s\n"),
            HasSubstr("  rank 1 waits for rank 0 in key y, iteration 1, for 3.0 s; rank 1 waits in "
                      "operation 7, all_reduce\n"),
            HasSubstr("wait for ranks of other racks in key z, iteration 1, for 2.0 s\n")));
}

TEST(DumpText, ShowsBarriersProgramsAndRanksThatCompute) {
  v1::JobDump dump = NewDump();
  v1::RankDump& waiting = AddRank(dump, 0);
  v1::OpenCall& call = *waiting.mutable_record()->add_calls();
  call.set_name("Barrier");
  call.set_waiting_ns(12 * kSecond);
  v1::RankDump& other = AddRank(dump, 1);
  other.mutable_record()->set_headline("sleeps");
  other.mutable_record()->set_text("first\nsecond");
  other.mutable_record()->set_note("a part is missing");
  dump.mutable_barrier()->set_number(3);
  dump.mutable_barrier()->add_waiting(0);
  dump.mutable_barrier()->add_missing(1);
  EXPECT_THAT(
      DumpText(dump, false),
      AllOf(HasSubstr("  rank 0 waits for rank 1 in barrier 3\n"),
            HasSubstr("rank 0 (node0, pid 4700): waits in Barrier for 12.0 s\n"),
            HasSubstr("  rank 1 (node1, pid 4701) sleeps; has no round in flight"),
            HasSubstr("  | first\n  | second\n"), HasSubstr("  note: a part is missing\n")));
  dump.mutable_barrier()->set_since_ns(12 * kSecond);
  EXPECT_THAT(DumpText(dump, false),
              HasSubstr("  rank 0 waits for rank 1 in barrier 3, for 12.0 s\n"));
}

TEST(DumpText, HasNoControlCharactersOfRanksAndMarksTheirLines) {
  v1::JobDump dump = NewDump();
  v1::RankDump& rank = AddRank(dump, 0);
  rank.set_host("node\x1b[31m");
  rank.mutable_record()->set_headline("a\nRANKS");
  rank.mutable_record()->set_text("x\n\nRANKS\nrank 7: \x1b]0;title\x07\n");
  const std::string text = DumpText(dump, false);
  EXPECT_THAT(
      text, AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\x07")), Not(HasSubstr("\nRANKS\nrank 7")),
                  HasSubstr("a?RANKS"), HasSubstr("  | x\n  | \n  | RANKS\n  | rank 7: ")));
}

TEST(DumpText, SaysThatNobodyWaitsAndWhichRanksAreShown) {
  v1::JobDump dump = NewDump();
  AddRank(dump, 0);
  EXPECT_THAT(DumpText(dump, false),
              AllOf(HasSubstr("digits: 1 rank\n"), HasSubstr("  no rank waits for another one\n")));
  dump.add_racks("a:7700");
  dump.add_racks("b:7700");
  dump.set_rack(1);
  dump.set_stalls_problem("core loop 1 did not report");
  EXPECT_THAT(DumpText(dump, false),
              AllOf(HasSubstr("only the 1 rank of rack 1, of 3 in 2 racks"),
                    HasSubstr("  rounds are not known: core loop 1 did not report\n")));
}

}  // namespace
}  // namespace phub::client::cli
