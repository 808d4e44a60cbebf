#include "common/aggregation/parameter_blocks.h"

#include <utility>

#include "common/base/check.h"

namespace phub::aggregation {

DurationNs ParameterBlocks::wait() const {
  // Twice, since most losses show by later blocks, and a question too early costs more than a wait.
  const DurationNs usual = versions_.is_known() ? 2 * versions_.timeout() : kWaitFirst;
  return std::clamp(usual * patience_ / kPatienceMin, kWaitMin, kWaitMax);
}

DurationNs ParameterBlocks::AnswerWait() const {
  return answers_.is_known() ? std::clamp(answers_.timeout(), kWaitMin, kWaitMax) : wait();
}

void ParameterBlocks::Resize(std::uint32_t chunks) {
  for (std::size_t i = chunks; i < chunks_.size(); ++i)
    PHUB_CHECK(chunks_[i].left == 0, "chunk={} is awaited", i);
  chunks_.resize(chunks);
  awaited_.reserve(chunks);
}

void ParameterBlocks::Await(ChunkIndex chunk, std::uint32_t blocks, TimeNs now) {
  PHUB_CHECK(blocks >= 1 && blocks <= kChunkBlocksMax, "chunk={} blocks={}", chunk.value, blocks);
  Chunk& awaited = chunks_[chunk.value];
  PHUB_CHECK(awaited.left == 0, "chunk={} is awaited already", chunk.value);
  awaited = {.blocks = blocks,
             .left = blocks,
             .index = static_cast<std::uint32_t>(awaited_.size()),
             .since = now,
             .due = now + wait()};
  for (std::uint32_t block = 0; block < blocks; ++block)
    awaited.missing[block / 8] |= static_cast<std::uint8_t>(1u << block % 8);
  awaited_.push_back(chunk);
  deadline_ = std::min(deadline_, awaited.due);
}

void ParameterBlocks::Forget(ChunkIndex chunk) {
  Chunk& forgotten = chunks_[chunk.value];
  if (forgotten.left == 0) return;
  forgotten.left = 0;
  const ChunkIndex last = awaited_.back();
  awaited_[forgotten.index] = last;
  chunks_[last.value].index = forgotten.index;
  awaited_.pop_back();
}

ParameterBlocks::Arrival ParameterBlocks::Arrive(ChunkIndex chunk, std::uint32_t block,
                                                 TimeNs now) {
  Chunk& awaited = chunks_[chunk.value];
  if (block >= awaited.blocks) return Arrival::kNotAwaited;
  const auto bit = static_cast<std::uint8_t>(1u << block % 8);
  if (awaited.left == 0 || (awaited.missing[block / 8] & bit) == 0) {
    NoteRepeated(awaited, block);
    return Arrival::kNotAwaited;
  }
  awaited.missing[block / 8] &= static_cast<std::uint8_t>(~bit);
  if (awaited.order == 0) awaited.order = ++begun_;
  if (awaited.asked_count == 0) NoteLater(awaited, now);
  if (awaited.left > 1) {
    --awaited.left;
    // The others follow. A question in vain does not count if blocks arrive.
    awaited.due =
        awaited.questions == 0 ? std::max(awaited.due, now + kWaitMin) : now + AnswerWait();
    // Blocks are sent in order: after the last one, nothing follows by itself.
    if (awaited.questions == 0 && block + 1 == awaited.blocks) awaited.due = now + kWaitLost;
    NoteAnswer(awaited, now);
    awaited.questions = 0;
    deadline_ = std::min(deadline_, awaited.due);
    return Arrival::kNew;
  }
  Forget(chunk);
  NoteAnswer(awaited, now);
  if (awaited.asked_count == 0) versions_.Add(now - awaited.since);
  patience_ = std::max(patience_ - patience_ / 16, kPatienceMin);
  return Arrival::kLast;
}

void ParameterBlocks::NoteLater(const Chunk& arrived, TimeNs now) {
  for (const ChunkIndex chunk : awaited_) {
    Chunk& earlier = chunks_[chunk.value];
    if (earlier.order == 0 || earlier.order >= arrived.order || earlier.questions != 0) continue;
    if (++earlier.later_blocks != kLaterBlocks) continue;
    earlier.due = std::min(earlier.due, now + kWaitLost);
    deadline_ = std::min(deadline_, earlier.due);
  }
}

// By Karn's rule, only the answer to a single question is measured.
void ParameterBlocks::NoteAnswer(Chunk& chunk, TimeNs now) {
  if (chunk.questions == 1 && chunk.asked_at != 0) answers_.Add(now - chunk.asked_at);
  chunk.asked_at = 0;
}

void ParameterBlocks::NoteRepeated(Chunk& chunk, std::uint32_t block) {
  if ((chunk.asked[block / 8] >> block % 8 & 1) == 0) return;
  chunk.asked[block / 8] &= static_cast<std::uint8_t>(~(1u << block % 8));
  if (2 * ++chunk.repeated <= chunk.asked_count) return;
  chunk.asked = {};
  patience_ = std::min(2 * patience_, kPatienceMax);
}

ParameterBlocks::Question ParameterBlocks::MakeQuestion(ChunkIndex chunk, TimeNs now) {
  Chunk& asked = chunks_[chunk.value];
  const Question question = {
      .chunk = chunk, .over_tcp = asked.questions == kQuestionsMax, .missing = asked.missing};
  asked.asked = asked.missing;
  asked.asked_count = asked.left;
  asked.repeated = 0;
  asked.asked_at = now;
  asked.due = now + std::min(AnswerWait() << asked.questions, kWaitMax);
  if (!question.over_tcp) ++asked.questions;
  return question;
}

}  // namespace phub::aggregation
