#include "client/cli/trace_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/session/trace_events.h"
#include "common/base/clock.h"

namespace phub::client::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

v1::TraceJobResponse FirstPage() {
  v1::TraceJobResponse page;
  page.set_trace(1);
  page.mutable_clock()->set_host("node\x1b");
  page.mutable_clock()->set_started_ns(7);
  page.mutable_clock()->set_now_ns(1000 * kSecond);
  page.set_incarnation("00ff");
  page.set_daemons(1);
  return page;
}

void AddKey(v1::TraceJobResponse& page, std::uint32_t chunks) {
  v1::TracedKey& key = *page.add_keys();
  key.set_name("fc1.\"w\"");
  key.set_chunks(chunks);
}

void AddSpan(v1::TraceJobResponse& page, v1::TracedWork work, std::uint32_t chunk,
             std::uint64_t round, std::int64_t begin_us, std::int64_t length_us) {
  v1::TracedSpan& span = *page.add_spans();
  span.set_work(work);
  span.set_core(chunk);
  span.set_chunk(chunk);
  span.set_round(round);
  span.set_iteration(round - 1);
  span.set_begin_ns(begin_us * 1000);
  span.set_duration_ns(length_us * 1000);
  span.set_rank(chunk + 1);
}

// Two chunks of one key in two core loops.
void AddRound(v1::TraceJobResponse& page, std::uint64_t round, std::int64_t at_us) {
  for (const std::uint32_t chunk : {0u, 1u}) {
    const std::int64_t begin = at_us + 10 * chunk;
    AddSpan(page, v1::TRACED_WORK_GATHER, chunk, round, begin, 50);
    AddSpan(page, v1::TRACED_WORK_UPDATE, chunk, round, begin + 60, 5);
    AddSpan(page, v1::TRACED_WORK_REPLY, chunk, round, begin + 65, 2);
  }
}

std::string TextOf(const TraceFile& trace) {
  std::string text;
  EXPECT_TRUE(trace.Write([&](std::string_view piece) {
    text += piece;
    return true;
  }));
  return text;
}

TEST(TraceFile, HasTheRoundsOfEachKeyAndTheWorkOfEachCoreLoop) {
  TraceFile trace("digits", FirstPage(), 1001 * kSecond);
  v1::TraceJobResponse page = FirstPage();
  AddKey(page, 2);
  AddRound(page, 5, 1000);
  AddRound(page, 6, 2000);
  trace.Add(page);
  EXPECT_EQ(trace.iterations(), 2u);
  EXPECT_EQ(trace.spans(), 12u);
  const std::string text = TextOf(trace);
  EXPECT_THAT(
      text, AllOf(HasSubstr("\"name\":\"fc1.\\\"w\\\" (job digits)\""),
                  HasSubstr("\"name\":\"phubd on node?\""), HasSubstr("\"name\":\"core loop 1\""),
                  HasSubstr("\"realtime_minus_monotonic_us\":1000000.000"),
                  HasSubstr("\"name\":\"round\",\"pid\":1000000,\"tid\":10000000,\"cat\":\"round\","
                            "\"ts\":1000.000,\"dur\":77.000,\"args\":{\"iteration\":4,\"round\":5,"
                            "\"operation\":\"reduce\",\"chunks\":2}"),
                  HasSubstr("\"cat\":\"gradients\",\"ts\":1000.000,\"dur\":60.000"),
                  HasSubstr("\"last_rank\":2"),
                  HasSubstr("\"cat\":\"update\",\"ts\":1060.000,\"dur\":17.000"),
                  HasSubstr("\"name\":\"update fc1.\\\"w\\\"\",\"pid\":1000000,\"tid\":2,\"cat\":"
                            "\"update\",\"ts\":1070.000,\"dur\":5.000")));
}

TEST(TraceFile, LeavesOutRoundsThatItHasOnlyInPart) {
  TraceFile trace("digits", FirstPage(), 0);
  v1::TraceJobResponse page = FirstPage();
  AddKey(page, 2);
  AddSpan(page, v1::TRACED_WORK_REPLY, 0, 4, 500, 2);
  AddRound(page, 5, 1000);
  // One of two core loops was read before it came to this round, the other one after it.
  AddSpan(page, v1::TRACED_WORK_GATHER, 0, 6, 2000, 2);
  AddSpan(page, v1::TRACED_WORK_REPLY, 0, 6, 2002, 2);
  AddSpan(page, v1::TRACED_WORK_GATHER, 0, 7, 3000, 2);
  page.set_dropped(3);
  trace.Add(page);
  EXPECT_EQ(trace.iterations(), 1u);
  EXPECT_EQ(trace.dropped(), 3u);
  const std::string text = TextOf(trace);
  EXPECT_THAT(text, AllOf(HasSubstr("\"spans_dropped\":3"), HasSubstr("\"round\":5"),
                          Not(HasSubstr("\"cat\":\"round\",\"ts\":2000"))));
  // Expect: what a core loop did is shown, also if its round is not complete.
  EXPECT_THAT(text, HasSubstr("\"cat\":\"reply\",\"ts\":500.000"));
}

TEST(TraceFile, RoundsOfAKeyDoNotOverlap) {
  TraceFile trace("digits", FirstPage(), 0);
  v1::TraceJobResponse page = FirstPage();
  AddKey(page, 2);
  AddRound(page, 5, 1000);
  AddRound(page, 6, 1070);
  trace.Add(page);
  EXPECT_THAT(TextOf(trace), HasSubstr("\"cat\":\"round\",\"ts\":1000.000,\"dur\":70.000"));
}

TEST(TraceFile, NamesTheRackAndTheDaemonIfThereAreOthers) {
  v1::TraceJobResponse page = FirstPage();
  page.set_daemons(2);
  page.set_daemon(1);
  page.set_rack(3);
  page.add_racks("a");
  const TraceFile trace("digits", page, 0);
  EXPECT_THAT(TextOf(trace), AllOf(HasSubstr(", rack 3, daemon 1\""), HasSubstr("\"pid\":1003001"),
                                   HasSubstr("\"whole_job\":false")));
}

// A round of a pool. numbers: the chunks' own.
void AddPooledRound(v1::TraceJobResponse& page, std::vector<std::uint64_t> numbers,
                    std::uint32_t operation, std::int64_t at_us) {
  for (std::uint32_t chunk = 0; chunk < numbers.size(); ++chunk) {
    // The chunks of a round follow each other: their times do not overlap.
    const std::int64_t begin = at_us + 10 * chunk;
    AddSpan(page, v1::TRACED_WORK_GATHER, chunk, numbers[chunk], begin, 2);
    AddSpan(page, v1::TRACED_WORK_UPDATE, chunk, numbers[chunk], begin + 2, 1);
    AddSpan(page, v1::TRACED_WORK_REPLY, chunk, numbers[chunk], begin + 3, 1);
    for (int i = 0; i < 3; ++i) {
      v1::TracedSpan& span = *page.mutable_spans(page.spans_size() - 1 - i);
      span.set_operation(4);
      v1::PooledRound& pooled = *span.mutable_pooled();
      pooled.set_chunks(static_cast<std::uint32_t>(numbers.size()));
      pooled.set_elements(1000 * numbers.size());
      pooled.set_type(1);
      pooled.set_sequence(operation);
    }
  }
}

TEST(TraceFile, PutsChunksOfPooledRoundsTogether) {
  TraceFile trace("digits", FirstPage(), 0);
  v1::TraceJobResponse page = FirstPage();
  AddKey(page, 3);
  // The last round before the trace had three chunks, and only the last one is in it.
  AddPooledRound(page, {9, 7, 3}, 8, 900);
  page.mutable_spans()->DeleteSubrange(0, 6);
  AddPooledRound(page, {10}, 9, 1000);
  AddPooledRound(page, {11, 8, 4}, 10, 2000);
  AddPooledRound(page, {12, 9}, 11, 3000);
  AddPooledRound(page, {13, 10}, 12, 4000);
  trace.Add(page);
  EXPECT_EQ(trace.iterations(), 4u);
  const std::string text = TextOf(trace);
  const auto round = [](int at, int length, int number, int operation, int chunks) {
    return fmt::format(
        "\"cat\":\"round\",\"ts\":{}.000,\"dur\":{}.000,\"args\":{{\"iteration\":{},\"round\":{},"
        "\"operation\":\"pooled\",\"pool_operation\":{},\"rounds_left\":0,\"elements\":{},"
        "\"type\":\"f32\",\"chunks\":{}}}",
        at, length, number - 1, number, operation, 1000 * chunks, chunks);
  };
  EXPECT_THAT(text,
              AllOf(HasSubstr(round(1000, 4, 10, 9, 1)), HasSubstr(round(2000, 24, 11, 10, 3)),
                    HasSubstr(round(3000, 14, 12, 11, 2)), HasSubstr(round(4000, 14, 13, 12, 2))));
  EXPECT_THAT(text, Not(HasSubstr("\"cat\":\"round\",\"ts\":920")));
}

TEST(TraceFile, AKeyThatHasTheNumberOfARemovedOneHasItsOwnTrack) {
  TraceFile trace("digits", FirstPage(), 0);
  v1::TraceJobResponse page = FirstPage();
  AddKey(page, 2);
  AddRound(page, 5, 1000);
  trace.Add(page);
  page.clear_spans();
  page.mutable_keys(0)->set_name("later");
  AddRound(page, 1, 2000);
  trace.Add(page);
  page.clear_keys();
  page.clear_spans();
  AddRound(page, 2, 3000);
  trace.Add(page);
  const std::string text = TextOf(trace);
  EXPECT_THAT(text, AllOf(HasSubstr("\"tid\":10000000,\"args\":{\"name\":\"fc1.\\\"w\\\" (job"),
                          HasSubstr("\"tid\":10131072,\"args\":{\"name\":\"later (job"),
                          HasSubstr("\"name\":\"round\",\"pid\":1000000,\"tid\":10131072,\"cat\":"
                                    "\"round\",\"ts\":3000"),
                          HasSubstr("update later")));
}

TEST(TraceFile, StopsIfItsFileCannotBeWritten) {
  const TraceFile trace("digits", FirstPage(), 0);
  EXPECT_FALSE(trace.Write([](std::string_view) { return false; }));
}

TEST(TraceEvents, TimesHaveTheirSign) {
  EXPECT_EQ(TraceMicroseconds(1'234'567), "1234.567");
  EXPECT_EQ(TraceMicroseconds(-1'050), "-1.050");
  EXPECT_EQ(TraceMicroseconds(-50), "-0.050");
}

}  // namespace
}  // namespace phub::client::cli
