#include "common/aggregation/parameter_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace phub::aggregation {
namespace {

using Arrival = ParameterBlocks::Arrival;
using Question = ParameterBlocks::Question;

constexpr DurationNs kWait = ParameterBlocks::kWaitFirst;  // as long as nothing is measured
constexpr ChunkIndex kChunk{3};

class ParameterBlocksTest : public ::testing::Test {
 protected:
  ParameterBlocksTest() { blocks_.Resize(5); }
  std::vector<Question> Due(TimeNs now) {
    std::vector<Question> questions;
    blocks_.Due(now, [&](const Question& question) { questions.push_back(question); });
    return questions;
  }
  ParameterBlocks blocks_;
};

TEST_F(ParameterBlocksTest, AVersionIsCompleteOnceEachOfItsBlocksHasArrived) {
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, 0), Arrival::kNotAwaited);
  blocks_.Await(kChunk, 3, 0);
  EXPECT_EQ(blocks_.Arrive(kChunk, 2, 1), Arrival::kNew);
  EXPECT_EQ(blocks_.Arrive(kChunk, 2, 2), Arrival::kNotAwaited);
  EXPECT_EQ(blocks_.Arrive(kChunk, 3, 2), Arrival::kNotAwaited) << "it has no such block";
  EXPECT_EQ(blocks_.Arrive(ChunkIndex{1}, 0, 2), Arrival::kNotAwaited);
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, 3), Arrival::kNew);
  EXPECT_EQ(blocks_.Arrive(kChunk, 1, 4), Arrival::kLast);
  EXPECT_FALSE(blocks_.IsAwaited(kChunk));
  EXPECT_TRUE(Due(kSecond).empty());
  blocks_.Await(kChunk, 1, kSecond);
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, kSecond), Arrival::kLast);
}

TEST_F(ParameterBlocksTest, ItAsksForExactlyTheBlocksThatAreMissing) {
  blocks_.Await(kChunk, kChunkBlocksMax, 0);
  blocks_.Await(ChunkIndex{0}, 1, 0);
  for (std::uint32_t block = 0; block < kChunkBlocksMax; ++block) {
    if (block != 9 && block != 95) blocks_.Arrive(kChunk, block, 5);
  }
  blocks_.Arrive(ChunkIndex{0}, 0, 6);
  EXPECT_LE(blocks_.deadline(), kWait);
  EXPECT_TRUE(Due(kWait - 1).empty()) << "the last block is not there, so others may follow";
  const std::vector<Question> questions = Due(kWait);
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(questions[0].chunk, kChunk);
  BlockSet expected{};
  expected[1] = 2;
  expected[11] = 128;
  EXPECT_EQ(questions[0].missing, expected);
  EXPECT_EQ(BlockSetBytes(kChunkBlocksMax), expected.size());
  EXPECT_EQ(BlockSetBytes(1), 1u);
}

TEST_F(ParameterBlocksTest, ItAsksSoonOnceTheLastBlockIsThere) {
  blocks_.Await(kChunk, 4, 0);
  for (const std::uint32_t block : {0u, 1u, 3u}) blocks_.Arrive(kChunk, block, 5);
  EXPECT_TRUE(Due(5 + ParameterBlocks::kWaitLost - 1).empty());
  const std::vector<Question> questions = Due(5 + ParameterBlocks::kWaitLost);
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(questions[0].missing[0], 1u << 2);
}

TEST_F(ParameterBlocksTest, ItAsksSoonOnceALaterVersionHasArrived) {
  constexpr ChunkIndex kLater{1};
  for (const ChunkIndex chunk : {kLater, kChunk, ChunkIndex{0}}) blocks_.Await(chunk, 5, 0);
  blocks_.Arrive(kChunk, 0, 5);
  for (const std::uint32_t block : {0u, 1u}) blocks_.Arrive(kLater, block, 6);
  blocks_.Arrive(kChunk, 1, 6);
  EXPECT_TRUE(Due(6 + ParameterBlocks::kWaitLost).empty()) << "two blocks may be overtaken";
  blocks_.Arrive(kLater, 3, 7);
  EXPECT_TRUE(Due(7 + ParameterBlocks::kWaitLost - 1).empty());
  const std::vector<Question> questions = Due(7 + ParameterBlocks::kWaitLost);
  ASSERT_EQ(questions.size(), 1u) << "of chunk 0 nothing has arrived, so it may be later";
  EXPECT_EQ(questions[0].chunk, kChunk);
}

TEST_F(ParameterBlocksTest, BlocksThatAreSentAgainAreNotLaterOnes) {
  constexpr ChunkIndex kLater{1};
  for (const ChunkIndex chunk : {kChunk, kLater}) blocks_.Await(chunk, 5, 0);
  blocks_.Arrive(kChunk, 0, 5);
  for (const std::uint32_t block : {0u, 4u}) blocks_.Arrive(kLater, block, 6);
  ASSERT_EQ(Due(6 + ParameterBlocks::kWaitLost).size(), 1u) << "its last block is there";
  for (const std::uint32_t block : {1u, 2u, 3u}) blocks_.Arrive(kLater, block, 8);
  EXPECT_TRUE(Due(kWait - 1).empty());
}

TEST_F(ParameterBlocksTest, QuestionsBecomeRareAndEndOverTcp) {
  blocks_.Await(kChunk, 2, 0);
  blocks_.Await(ChunkIndex{4}, 1, 0);
  blocks_.Forget(ChunkIndex{4});
  for (std::uint32_t i = 0; i < ParameterBlocks::kQuestionsMax; ++i)
    EXPECT_FALSE(Due(blocks_.deadline()).at(0).over_tcp);
  EXPECT_GT(blocks_.deadline(), 3 * kSecond);
  // Expect: that question is repeated, too, since the round may not be complete yet.
  for (int i = 0; i < 3; ++i) {
    const TimeNs now = blocks_.deadline();
    EXPECT_TRUE(Due(now).at(0).over_tcp);
    EXPECT_EQ(blocks_.deadline(), now + ParameterBlocks::kWaitMax);
  }
  blocks_.Forget(kChunk);
  EXPECT_TRUE(Due(blocks_.deadline()).empty());
  EXPECT_EQ(blocks_.deadline(), ParameterBlocks::kNever);
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, 9 * kSecond), Arrival::kNotAwaited);
}

TEST_F(ParameterBlocksTest, BlocksThatArriveEndTheDoubling) {
  blocks_.Await(kChunk, 3, 0);
  for (int i = 0; i < 3; ++i) Due(blocks_.deadline());
  EXPECT_EQ(blocks_.deadline(), (1 + 1 + 2 + 4) * kWait);
  const TimeNs now = 7 * kWait;
  blocks_.Arrive(kChunk, 1, now);
  EXPECT_TRUE(Due(now + kWait - 1).empty());
  EXPECT_EQ(Due(now + kWait).size(), 1u);
  EXPECT_EQ(blocks_.deadline(), now + 2 * kWait);
}

TEST_F(ParameterBlocksTest, TheTimeOfVersionsIsMeasured) {
  for (int i = 0; i < 100; ++i) {
    const TimeNs now = i * kSecond;
    blocks_.Await(kChunk, 2, now);
    blocks_.Arrive(kChunk, 0, now + 3 * kMillisecond);
    blocks_.Arrive(kChunk, 1, now + 40 * kMillisecond);
  }
  EXPECT_GE(blocks_.wait(), 80 * kMillisecond);
  EXPECT_LT(blocks_.wait(), 82 * kMillisecond);
  // Expect: a version that was asked for says nothing.
  blocks_.Await(kChunk, 1, 100 * kSecond);
  EXPECT_EQ(Due(101 * kSecond).size(), 1u);
  blocks_.Arrive(kChunk, 0, 102 * kSecond);
  EXPECT_LT(blocks_.wait(), 82 * kMillisecond);
}

TEST_F(ParameterBlocksTest, TheNextQuestionComesWhenAnswersUsuallyHaveArrived) {
  const auto answered_after = [&](DurationNs time, std::uint32_t questions) {
    blocks_.Await(kChunk, 1, 0);
    TimeNs now = 0;
    for (std::uint32_t i = 0; i < questions; ++i) {
      now = blocks_.deadline();
      EXPECT_EQ(Due(now).size(), 1u);
    }
    blocks_.Arrive(kChunk, 0, now + time);
    Due(now + kSecond);
  };
  for (int i = 0; i < 100; ++i) answered_after(30 * kMillisecond, 1);
  answered_after(kMillisecond, 2);  // nobody knows to which question this is the answer
  blocks_.Await(kChunk, 2, 0);
  EXPECT_EQ(Due(kWait).size(), 1u);
  EXPECT_GE(blocks_.deadline(), kWait + 30 * kMillisecond);
  EXPECT_LT(blocks_.deadline(), kWait + 31 * kMillisecond);
  blocks_.Arrive(kChunk, 0, 2 * kWait);
  EXPECT_TRUE(Due(2 * kWait + 29 * kMillisecond).empty());
}

TEST_F(ParameterBlocksTest, AQuestionThatWasTooEarlyMakesAllWait) {
  const auto exchange = [&](TimeNs now) {
    blocks_.Await(kChunk, 1, now);
    blocks_.Arrive(kChunk, 0, now + 40 * kMillisecond);
  };
  for (int i = 0; i < 100; ++i) exchange(i * kSecond);
  const DurationNs before = blocks_.wait();
  TimeNs now = 100 * kSecond;
  blocks_.Await(kChunk, 4, now);
  blocks_.Arrive(kChunk, 3, now);
  now += before;
  EXPECT_EQ(Due(now).size(), 1u);
  for (std::uint32_t block = 0; block < 3; ++block) blocks_.Arrive(kChunk, block, now + 1);
  // Expect: one of the three, or one that was not asked for, may be a copy that the network made.
  for (int i = 0; i < 5; ++i) {
    blocks_.Arrive(kChunk, 0, now + 2);
    blocks_.Arrive(kChunk, 3, now + 2);
  }
  EXPECT_EQ(blocks_.wait(), before);
  blocks_.Arrive(kChunk, 2, now + 2);
  EXPECT_EQ(blocks_.wait(), 2 * before);
  blocks_.Arrive(kChunk, 1, now + 2);
  EXPECT_EQ(blocks_.wait(), 2 * before);
  // Expect: without such mistakes it becomes shorter again.
  for (int i = 101; i < 300; ++i) exchange(i * kSecond);
  EXPECT_LE(blocks_.wait(), before);
}

TEST_F(ParameterBlocksTest, TheWaitHasLimits) {
  for (int i = 0; i < 100; ++i) {
    blocks_.Await(kChunk, 1, i);
    blocks_.Arrive(kChunk, 0, i + 1);
  }
  EXPECT_EQ(blocks_.wait(), ParameterBlocks::kWaitMin);
  blocks_.Await(kChunk, 1, 0);
  blocks_.Arrive(kChunk, 0, 100 * kSecond);
  EXPECT_EQ(blocks_.wait(), ParameterBlocks::kWaitMax);
}

TEST_F(ParameterBlocksTest, EachChunkHasItsOwnQuestions) {
  for (std::uint32_t chunk = 0; chunk < 5; ++chunk) blocks_.Await(ChunkIndex{chunk}, 1, 0);
  EXPECT_EQ(Due(kWait).size(), 5u);
  blocks_.Forget(ChunkIndex{1});
  blocks_.Arrive(ChunkIndex{4}, 0, kWait);
  std::vector<std::uint32_t> asked;
  for (const Question& question : Due(3 * kWait)) asked.push_back(question.chunk.value);
  std::ranges::sort(asked);
  EXPECT_EQ(asked, (std::vector<std::uint32_t>{0, 2, 3}));
}

}  // namespace
}  // namespace phub::aggregation
