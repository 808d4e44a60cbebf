// The settings, the file and the memory of a timeline. tests/python/timeline_test.py has whole
// runs.
#include "client/session/timeline.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "tests/support/temporary_folder.h"

namespace phub::client {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

Timeline::Record Round(std::uint32_t track, std::uint64_t round) {
  const auto at = static_cast<TimeNs>(1000 * round);
  return {.track = track,
          .begin = at,
          .sending = at + 10,
          .sent = at + 200,
          .end = at + 900,
          .round = round,
          .iteration = round - 1,
          .bytes_up = 400,
          .bytes_down = 800,
          .operation = "reduce"};
}

// The events with this value of `field`.
std::vector<Json> EventsWith(const Json& events, const char* field, const std::string& value) {
  std::vector<Json> found;
  for (const Json& event : events)
    if (event.value(field, "") == value) found.push_back(event);
  return found;
}

TEST(TimelineSettings, AreReadFromTheEnvironment) {
  EXPECT_EQ(ReadTimelineSettings(nullptr, "1:2")->path, "");
  EXPECT_EQ(ReadTimelineSettings("", nullptr)->path, "");
  const auto read = [](const char* window) {
    const auto settings = ReadTimelineSettings("a.json", window);
    return std::pair(settings->first, settings->end);
  };
  EXPECT_EQ(read(nullptr), std::pair(std::uint64_t{0}, UINT64_MAX));
  EXPECT_EQ(read("10:20"), std::pair(std::uint64_t{10}, std::uint64_t{20}));
  EXPECT_EQ(read("10:"), std::pair(std::uint64_t{10}, UINT64_MAX));
  EXPECT_EQ(read(":20"), std::pair(std::uint64_t{0}, std::uint64_t{20}));
  for (const char* wrong : {"", "10", "10-20", "20:10", "5:5", "-1:5", "1:2:3", "a:b", "1: 2",
                            "1:99999999999999999999999"}) {
    const auto settings = ReadTimelineSettings("a.json", wrong);
    ASSERT_FALSE(settings.ok()) << wrong;
    EXPECT_THAT(settings.status().message(), HasSubstr("PHUB_TIMELINE_ITERATIONS is '"));
  }
}

TEST(TimelineSettings, EachRankHasItsOwnFile) {
  EXPECT_EQ(TimelinePath("a.json", 3), "a.rank3.json");
  EXPECT_EQ(TimelinePath("out/%r/a.json", 12), "out/12/a.json");
  EXPECT_EQ(TimelinePath("a", 0), "a.rank0");
  EXPECT_EQ(TimelinePath(".json", 0), ".json.rank0");
}

TEST(Timeline, ARoundOfAPoolHasTheNumberOfItsOperation) {
  Timeline timeline({.path = "unused"});
  timeline.JobBegan(0);
  Timeline::Record round = Round(timeline.AddKey("digits", 0, "metrics/1"), 4);
  round.pooled = true;
  round.pool_operation = 7;
  timeline.Add(round);
  const Json events = Json::parse(timeline.Json());
  for (const char* const name : {"push", "pull"}) {
    const auto spans = EventsWith(events, "name", name);
    ASSERT_EQ(spans.size(), 1u);
    EXPECT_EQ(spans[0]["args"]["pool_operation"], 7);
  }
}

TEST(Timeline, ARoundIsAPushAndAPullWithAnArrow) {
  Timeline timeline({.path = "unused"});
  timeline.JobBegan(7);
  const std::uint32_t track = timeline.AddKey("digits", 7, "fc1 \"weight\" \\");
  timeline.AddKey("other", 2, "fc2");
  timeline.Add(Round(track, 4));
  const Json events = Json::parse(timeline.Json());
  for (const Json& event : events) EXPECT_EQ(event["pid"], 7);

  const auto spans = EventsWith(events, "ph", "X");
  ASSERT_EQ(spans.size(), 3u);
  const Json arguments = {{"iteration", 3}, {"round", 4}, {"operation", "reduce"}};
  EXPECT_EQ(spans[0]["name"], "push");
  EXPECT_EQ(spans[0]["ts"], 4.0);
  EXPECT_EQ(spans[0]["dur"], 0.2);
  EXPECT_EQ(spans[0]["args"]["bytes"], 400);
  EXPECT_EQ(spans[1]["name"], "queued");
  EXPECT_EQ(spans[1]["dur"], 0.01);
  EXPECT_EQ(spans[2]["name"], "pull");
  EXPECT_EQ(spans[2]["ts"], 4.2);
  EXPECT_EQ(spans[2]["dur"], 0.7);
  EXPECT_EQ(spans[2]["args"]["bytes"], 800);
  EXPECT_EQ(spans[2]["args"]["skipped"], false);
  for (const int i : {0, 2})
    for (const auto& [name, value] : arguments.items()) EXPECT_EQ(spans[i]["args"][name], value);

  // The arrow begins in the push and ends in the pull.
  const auto from = EventsWith(events, "ph", "s"), to = EventsWith(events, "ph", "f");
  ASSERT_EQ(from.size(), 1u);
  ASSERT_EQ(to.size(), 1u);
  EXPECT_EQ(from[0]["id"], to[0]["id"]);
  EXPECT_EQ(from[0]["ts"], 4.0);
  EXPECT_EQ(to[0]["ts"], 4.55);
  EXPECT_EQ(to[0]["bp"], "e");

  const auto names = EventsWith(events, "name", "thread_name");
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0]["args"]["name"], "fc1 \"weight\" \\ (job digits)");
  EXPECT_EQ(names[0]["tid"], spans[0]["tid"]);
  EXPECT_EQ(names[1]["args"]["name"], "fc2 (job other, rank 2)");
}

TEST(Timeline, WaitsAreOnTracksOfTheirThreads) {
  Timeline timeline({.path = "unused"});
  timeline.JobBegan(0);
  const std::uint32_t track = timeline.AddKey("digits", 0, "fc1");
  for (const std::int32_t thread : {getpid(), getpid(), getpid() + 1})
    timeline.Add({.track = track, .thread = thread, .begin = 100, .end = 350});
  const Json events = Json::parse(timeline.Json());
  const auto waits = EventsWith(events, "name", "wait fc1 (job digits)");
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_EQ(waits[0]["tid"], getpid());
  EXPECT_EQ(waits[0]["dur"], 0.25);
  std::vector<std::string> names;
  for (const Json& event : EventsWith(events, "name", "thread_name"))
    names.push_back(event["args"]["name"]);
  EXPECT_THAT(names, ElementsAre("fc1 (job digits)", "main thread",
                                 "thread " + std::to_string(getpid() + 1)));
}

TEST(Timeline, HasComputationsOfTheWindow) {
  Timeline timeline({.path = "unused", .first = 1, .end = 3, .keys_max = 2});
  timeline.JobBegan(0);
  for (const std::uint64_t iteration : {0u, 1u, 2u, 3u})
    timeline.AddComputation("to \"fc1\"\n", iteration, 1'000, 3'500);
  timeline.AddComputation("backwards", 1, 3'000, 2'000);
  for (const char* name : {"to fc2", "to fc3", "to fc4"})
    timeline.AddComputation(name, 2, 4'000, 5'000);
  const Json events = Json::parse(timeline.Json());
  std::vector<std::string> found;
  for (const Json& event : EventsWith(events, "cat", "compute")) {
    EXPECT_EQ(event["tid"], gettid());
    found.push_back(fmt::format("{} {} {}", event["name"].get<std::string>(),
                                event["args"]["iteration"].get<int>(), event["dur"].get<double>()));
  }
  EXPECT_THAT(found, ElementsAre("to \"fc1\"? 1 2.5", "to \"fc1\"? 2 2.5", "to fc2 2 1",
                                 "computation 2 1", "computation 2 1"));
}

TEST(Timeline, KeepsTheNewestRecordsInBoundedMemory) {
  Timeline timeline({.path = "unused", .records_max = 3, .keys_max = 2});
  timeline.JobBegan(0);
  const std::uint32_t track = timeline.AddKey("digits", 0, "fc1");
  EXPECT_NE(timeline.AddKey("digits", 0, "fc2"), Timeline::kNoTrack);
  EXPECT_EQ(timeline.AddKey("digits", 0, "fc3"), Timeline::kNoTrack);
  for (std::uint64_t round = 1; round <= 8; ++round) timeline.Add(Round(track, round));
  const Json events = Json::parse(timeline.Json());
  std::vector<int> rounds;
  for (const Json& event : EventsWith(events, "name", "pull"))
    rounds.push_back(event["args"]["round"]);
  EXPECT_THAT(rounds, ElementsAre(6, 7, 8));
  const auto about = EventsWith(events, "name", "phub_timeline");
  ASSERT_EQ(about.size(), 1u);
  EXPECT_EQ(about[0]["args"]["records_lost"], 5);
  EXPECT_EQ(about[0]["args"]["keys_left_out"], 1);
}

TEST(Timeline, HasTheClockOfEachDaemonWithTheLeastError) {
  // The daemon read 10'000'000 ns at some time of a call from 1'000 to 5'001 ns.
  const MeasuredClock clock = MeasuredClock::Of("a\"b", 7, 10'000'000, 1'000, 5'001);
  EXPECT_EQ(clock.offset, 10'000'000 - 3'000);
  EXPECT_EQ(clock.error, 2'001);
  MeasuredClock better = clock, worse = clock, restarted = clock;
  better.error = 1'500;
  better.offset = -2'500;
  worse.error = 9'000;
  restarted.started_ns = 8;
  Timeline timeline({.path = "unused"});
  timeline.JobBegan(0, {clock});
  timeline.JobBegan(0, {better, worse, restarted});
  const Json events = Json::parse(timeline.Json());
  const Json daemons = EventsWith(events, "name", "phub_timeline").at(0)["args"]["daemons"];
  ASSERT_EQ(daemons.size(), 2u);
  EXPECT_EQ(daemons[0], (Json{{"host", "a\"b"},
                              {"started_ns", 7},
                              {"clock_offset_us", -2.5},
                              {"clock_error_us", 1.5}}));
  EXPECT_EQ(daemons[1]["started_ns"], 8);
}

TEST(Timeline, RecordsOnlyIterationsOfItsWindow) {
  Timeline timeline({.path = "unused", .first = 2, .end = 4});
  timeline.JobBegan(0);
  KeyTrace key;
  EXPECT_FALSE(key.on());
  key.Begin(timeline, Timeline::kNoTrack);
  EXPECT_FALSE(key.on());
  key.Begin(timeline, timeline.AddKey("digits", 0, "fc1"));
  ASSERT_TRUE(key.on());
  for (std::uint64_t round = 1; round <= 6; ++round) {
    key.Push(round, {.begin = 1, .round = round, .iteration = round - 1, .operation = "reduce"});
    { const KeyTrace::Waiting waiting(key, round); }
    key.Sent(/*all=*/false);
    key.Sent(/*all=*/true);
    key.Complete(/*skipped=*/round == 3);
  }
  const Json events = Json::parse(timeline.Json());
  const auto pulls = EventsWith(events, "name", "pull");
  ASSERT_EQ(pulls.size(), 2u);
  EXPECT_EQ(pulls[0]["args"]["iteration"], 2);
  EXPECT_EQ(pulls[0]["args"]["skipped"], true);
  EXPECT_EQ(pulls[1]["args"]["iteration"], 3);
  EXPECT_EQ(pulls[1]["args"]["skipped"], false);
  EXPECT_EQ(EventsWith(events, "cat", "wait").size(), 2u);
}

class TimelineFile : public ::testing::Test {
 protected:
  TimelineFile() {
    SetLogSink(
        [](void* context, LogLevel, const std::string& line) {
          if (line.find("event=timeline_") == std::string::npos) return;  // another test's thread
          static_cast<std::vector<std::string>*>(context)->push_back(line);
        },
        &lines_);
  }
  ~TimelineFile() override { SetLogSink(nullptr, nullptr); }
  std::string Path() const { return folder_.path() + "/a.json"; }
  std::string Written() const { return folder_.path() + "/a.rank0.json"; }
  std::string Text() const {
    std::ifstream file(Written());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  TemporaryFolder folder_;
  std::vector<std::string> lines_;
};

TEST_F(TimelineFile, IsWrittenAfterTheLastJobEndsAndAtExitIfThereIsMore) {
  Timeline timeline({.path = Path()});
  timeline.JobBegan(0);
  timeline.JobBegan(1);
  const std::uint32_t track = timeline.AddKey("digits", 0, "fc1");
  constexpr std::uint64_t kRounds = 1000;  // written in several pieces
  for (std::uint64_t round = 1; round <= kRounds; ++round) timeline.Add(Round(track, round));
  timeline.JobEnded();
  EXPECT_THAT(Text(), IsEmpty());
  timeline.JobEnded();
  EXPECT_EQ(EventsWith(Json::parse(Text()), "name", "pull").size(), kRounds);
  std::filesystem::remove(Written());
  timeline.Write();  // nothing is new
  EXPECT_THAT(Text(), IsEmpty());
  timeline.Add(Round(track, kRounds + 1));
  timeline.Write();
  EXPECT_EQ(EventsWith(Json::parse(Text()), "name", "pull").size(), kRounds + 1);
  EXPECT_THAT(lines_, IsEmpty());
}

TEST_F(TimelineFile, AFileThatCannotBeWrittenIsAWarning) {
  std::filesystem::create_symlink("/dev/full", Written());  // a full disk
  Timeline full({.path = Path()});
  full.JobBegan(0);
  full.JobEnded();
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("event=timeline_not_written"),
                                        HasSubstr(Written()), HasSubstr("No space left"))));
  Timeline nowhere({.path = folder_.path() + "/none/a.json"});
  nowhere.JobBegan(0);
  nowhere.JobEnded();
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_THAT(lines_[1], HasSubstr("No such file"));
}

TEST_F(TimelineFile, ThatHasNotEverythingIsAWarning) {
  Timeline timeline({.path = Path(), .records_max = 2});
  for (int i = 0; i < 2; ++i) {
    timeline.JobBegan(0);
    const std::uint32_t track = timeline.AddKey("digits", 0, "fc1");
    for (std::uint64_t round = 1; round <= 3; ++round) timeline.Add(Round(track, round));
    timeline.JobEnded();
  }
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("event=timeline_incomplete"),
                                        HasSubstr("records_lost=1 keys_left_out=0"))));
}

}  // namespace
}  // namespace phub::client
