// What a rank answers when a daemon asks what it is doing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "phub/client.h"
#include "tests/unit/client/session/fake_rack.h"

namespace phub::client {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::uint32_t kBytesMax = 4096;

class DumpAnswersTest : public ::testing::Test {
 protected:
  DumpAnswersTest() {
    auto job = rack_.Join({.job = "digits"});
    EXPECT_TRUE(job.ok()) << ToString(job.status());
    job_.emplace(*std::move(job));
  }
  void Ask(std::size_t daemon = 0) {
    v1::SessionEvent event;
    event.mutable_dump()->set_number(++asked_);
    event.mutable_dump()->set_bytes_max(kBytesMax);
    rack_[daemon].Say(event);
  }
  // The reports so far, at least `count`.
  std::vector<v1::ReportDumpRequest> Reports(std::size_t count, std::size_t daemon = 0) {
    for (int i = 0; i < 10'000 && rack_[daemon].dump_reports().size() < count; ++i)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_GE(rack_[daemon].dump_reports().size(), count);
    return rack_[daemon].dump_reports();
  }
  Key Add(const std::string& name) {
    auto key = job_->AddKey(name, f32, 100, None{});
    EXPECT_TRUE(key.ok()) << ToString(key.status());
    return *key;
  }

  FakeRack rack_{{1, 1}, {.liveness_timeout = 60 * kSecond}};
  std::optional<Job> job_;
  std::uint64_t asked_ = 0;
};

TEST_F(DumpAnswersTest, NameRoundsInFlightAndNothingElse) {
  Key fc1 = Add("fc1");
  Key fc2 = Add("fc2");
  EXPECT_TRUE(rack_[0].join_request().dumps());
  ASSERT_TRUE(fc1.PushPull().Wait().ok());
  Ask();
  const v1::ReportDumpRequest idle = Reports(1).at(0);
  EXPECT_EQ(idle.number(), 1u);
  EXPECT_FALSE(idle.more());
  EXPECT_EQ(idle.record().round_count(), 0u);
  EXPECT_EQ(idle.record().calls_size(), 0);
  rack_[0].HoldReplies(true);
  rack_[1].HoldReplies(true);
  const Handle second = fc2.PushPull();
  std::this_thread::sleep_for(milliseconds(20));
  const Handle first = fc1.PushPull();
  Ask(1);  // each daemon gets an answer of its own
  const v1::RankRecord record = Reports(1, 1).at(0).record();
  ASSERT_EQ(record.rounds_size(), 2);
  EXPECT_EQ(record.round_count(), 2u);
  EXPECT_EQ(record.rounds(0).key(), "fc2");  // the oldest
  EXPECT_EQ(record.rounds(0).iteration(), 1u);
  EXPECT_EQ(record.rounds(0).operation(), "reduce");
  EXPECT_GE(record.rounds(0).waiting_ns(), 20 * kMillisecond);
  EXPECT_EQ(record.rounds(1).key(), "fc1");
  EXPECT_EQ(record.rounds(1).iteration(), 2u);
  rack_[0].HoldReplies(false);
  rack_[1].HoldReplies(false);
  EXPECT_TRUE(first.Wait().ok());
  EXPECT_TRUE(second.Wait().ok());
}

TEST_F(DumpAnswersTest, NameCallsThatWait) {
  rack_[0].HoldBarrier(true);
  std::thread waiting([&] { EXPECT_TRUE(job_->Barrier().ok()); });
  v1::RankRecord record;
  for (std::size_t i = 1; i < 1000 && record.calls_size() == 0; ++i) {
    Ask();
    record = Reports(i).at(i - 1).record();
  }
  ASSERT_EQ(record.calls_size(), 1);
  EXPECT_EQ(record.calls(0).name(), "Barrier");
  rack_[0].HoldBarrier(false);
  waiting.join();
}

TEST_F(DumpAnswersTest, FitIntoTheLimitHoweverManyRoundsThereAre) {
  std::vector<Key> keys;
  for (int i = 0; i < 300; ++i) keys.push_back(Add("a_key_with_a_long_name" + std::to_string(i)));
  rack_[0].HoldReplies(true);
  rack_[1].HoldReplies(true);
  for (Key& key : keys) key.Push();
  std::string lines(3'000, 'x');
  lines += '\n';
  lines.append(3'000, 'y');
  const Status set = job_->SetRecorder([lines](std::size_t) {
    return DumpRecord{
        .headline = std::string(10'000, 'h'), .text = lines, .json = std::string(3'000, 'j')};
  });
  ASSERT_TRUE(set.ok());
  Ask();
  const std::vector<v1::ReportDumpRequest> reports = Reports(2);
  EXPECT_TRUE(reports[0].more());
  EXPECT_EQ(reports[0].record().round_count(), 300u);
  EXPECT_GT(reports[0].record().rounds_size(), 5);
  EXPECT_FALSE(reports[1].more());
  EXPECT_LE(reports[0].record().ByteSizeLong() + reports[1].record().ByteSizeLong(), kBytesMax);
  EXPECT_THAT(reports[1].record().note(), HasSubstr("was cut from 6001 to 0 bytes"));
  EXPECT_THAT(reports[1].record().note(), HasSubstr("JSON of 3000 bytes was left out"));
  rack_[0].HoldReplies(false);
  rack_[1].HoldReplies(false);
}

TEST_F(DumpAnswersTest, DoNotWaitForARecorderThatBlocks) {
  std::atomic<bool> go_on{false};
  std::atomic<std::size_t> bytes_max{0};
  ASSERT_TRUE(job_->SetRecorder([&](std::size_t bytes) {
                    bytes_max = bytes;
                    while (!go_on) std::this_thread::sleep_for(milliseconds(1));
                    return DumpRecord{.headline = "waits\xff", .text = "a\x1b\nb", .json = "{}"};
                  })
                  .ok());
  Key key = Add("fc1");
  Ask();
  EXPECT_TRUE(Reports(1).at(0).more());
  // Expect: training goes on meanwhile.
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(key.PushPull().Wait().ok());
  EXPECT_EQ(rack_[0].dump_reports().size(), 1u);
  go_on = true;
  const v1::RankRecord record = Reports(2).at(1).record();
  EXPECT_EQ(record.headline(), "waits?");
  EXPECT_EQ(record.text(), "a?\nb");
  EXPECT_EQ(record.json(), "{}");
  EXPECT_GT(bytes_max.load(), kBytesMax / 4);
  EXPECT_LT(bytes_max.load(), kBytesMax);
}

TEST_F(DumpAnswersTest, SurviveARecorderThatThrows) {
  ASSERT_TRUE(
      job_->SetRecorder([](std::size_t) -> DumpRecord { throw std::runtime_error("no \x01 idea"); })
          .ok());
  Ask();
  EXPECT_EQ(Reports(2).at(1).record().note(), "the program's recorder failed: no ? idea");
}

TEST_F(DumpAnswersTest, CallNoRecorderThatWasTakenAway) {
  std::atomic<int> calls{0};
  std::atomic<bool> in_call{false};
  ASSERT_TRUE(job_->SetRecorder([&](std::size_t) {
                    in_call = true;
                    std::this_thread::sleep_for(milliseconds(50));
                    ++calls;
                    in_call = false;
                    return DumpRecord();
                  })
                  .ok());
  Ask();
  while (!in_call) std::this_thread::yield();
  ASSERT_TRUE(job_->SetRecorder(nullptr).ok());
  EXPECT_FALSE(in_call);  // it returned after the call
  EXPECT_EQ(calls, 1);
  Ask();
  EXPECT_FALSE(Reports(3).at(2).more());
  EXPECT_EQ(calls, 1);
}

TEST_F(DumpAnswersTest, EndWhenTheRankLeaves) {
  ASSERT_TRUE(job_->SetRecorder([](std::size_t) {
                    std::this_thread::sleep_for(milliseconds(20));
                    return DumpRecord();
                  })
                  .ok());
  Ask();
  EXPECT_TRUE(job_->Leave().ok());
  EXPECT_FALSE(job_->SetRecorder([](std::size_t) { return DumpRecord(); }).ok());
  EXPECT_TRUE(job_->SetRecorder(nullptr).ok());
}

// An interpreter may collect the job as garbage in any thread.
TEST_F(DumpAnswersTest, EndInTheRecorderItself) {
  std::atomic<bool> ended{false};
  ASSERT_TRUE(job_->SetRecorder([&](std::size_t) {
                    EXPECT_FALSE(job_->SetRecorder(nullptr).ok());
                    job_.reset();
                    ended = true;
                    return DumpRecord();
                  })
                  .ok());
  Ask();
  for (int i = 0; i < 10'000 && !ended; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(ended);
  EXPECT_EQ(rack_[0].left_count(), 1);
}

}  // namespace
}  // namespace phub::client
