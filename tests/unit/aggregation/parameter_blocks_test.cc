#include "common/aggregation/parameter_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace phub::aggregation {
namespace {

using Arrival = ParameterBlocks::Arrival;
using Question = ParameterBlocks::Question;

constexpr DurationNs kWait = ParameterBlocks::kWaitMin;
constexpr ChunkIndex kChunk{3};

class ParameterBlocksTest : public ::testing::Test {
 protected:
  ParameterBlocksTest() { blocks_.Resize(5); }
  std::vector<Question> Due(TimeNs now) {
    std::vector<Question> questions;
    blocks_.Due(
        now, [&](ChunkIndex) { return has_position_; },
        [&](const Question& question) { questions.push_back(question); });
    return questions;
  }
  ParameterBlocks blocks_;
  bool has_position_ = true;
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
  EXPECT_LE(blocks_.deadline(), 5 + kWait);
  EXPECT_TRUE(Due(4 + kWait).empty());
  const std::vector<Question> questions = Due(5 + kWait);
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(questions[0].chunk, kChunk);
  BlockSet expected{};
  expected[1] = 2;
  expected[11] = 128;
  EXPECT_EQ(questions[0].missing, expected);
  EXPECT_EQ(BlockSetBytes(kChunkBlocksMax), expected.size());
  EXPECT_EQ(BlockSetBytes(1), 1u);
}

TEST_F(ParameterBlocksTest, NothingIsAskedBeforeThereIsAPosition) {
  has_position_ = false;
  blocks_.Await(kChunk, 2, 0);
  for (TimeNs now = 0; now < kSecond; now = blocks_.deadline()) EXPECT_TRUE(Due(now).empty());
  has_position_ = true;
  EXPECT_EQ(Due(blocks_.deadline()).size(), 1u);
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

TEST_F(ParameterBlocksTest, ANewBlockBeginsTheQuestionsAgain) {
  blocks_.Await(kChunk, 2, 0);
  for (int i = 0; i < 5; ++i) Due(blocks_.deadline());
  EXPECT_GT(blocks_.deadline(), 10 * kWait);
  const TimeNs now = 9 * kWait;
  blocks_.Arrive(kChunk, 1, now);
  EXPECT_EQ(Due(now + kWait).size(), 1u);
}

TEST_F(ParameterBlocksTest, ABlockThatComesTwiceMakesLaterQuestionsWait) {
  blocks_.Await(kChunk, 1, 0);
  EXPECT_EQ(Due(kWait).size(), 1u);
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, kWait + 1), Arrival::kLast);
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, kWait + 2), Arrival::kNotAwaited);  // the answer
  EXPECT_EQ(blocks_.Arrive(kChunk, 0, kWait + 2), Arrival::kNotAwaited);
  const TimeNs now = kSecond;
  EXPECT_TRUE(Due(now).empty());
  blocks_.Await(kChunk, 1, now);
  EXPECT_EQ(blocks_.deadline(), now + 2 * kWait);
  blocks_.Arrive(kChunk, 0, now);
  // Expect: without such mistakes it becomes shorter again, but not shorter than at first.
  for (int i = 0; i < 200; ++i) {
    blocks_.Await(kChunk, 1, now);
    blocks_.Arrive(kChunk, 0, now);
  }
  Due(now + kSecond);
  blocks_.Await(kChunk, 1, now);
  EXPECT_EQ(blocks_.deadline(), now + kWait);
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
