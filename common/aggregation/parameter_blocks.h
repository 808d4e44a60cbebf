// The blocks of new parameters that a worker waits for: which have arrived, and when to ask for the
// others. Pure: no clock, no I/O. One thread. Allocates only in Resize().
//
// A version arrives as datagrams, one for each block, which may be lost, repeated or overtake each
// other. The core loop sends blocks in order, and one version after the other. So what is missing
// is lost once the version's last block has arrived, or a few blocks of a later version have. Then,
// or if some are missing when versions usually are complete, the worker asks the core loop for
// them, over tcp. How long a version takes is measured from Await(), as in RFC 6298, if there were
// no questions (Karn's rule). If most of the blocks that a question was about come twice, it was
// too early: then all wait twice as long. The next question about a chunk comes when answers
// usually have arrived. Each question in vain doubles that time, and after kQuestionsMax of them
// the worker asks for the whole version over tcp.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "common/aggregation/round_trip.h"
#include "common/aggregation/stream_terms.h"
#include "common/base/clock.h"
#include "common/base/ids.h"

namespace phub::aggregation {

// Block i is bit i % 8 of byte i / 8; a question has the bytes that the chunk's blocks need.
inline constexpr std::size_t kBlockSetBytesMax = kChunkBlocksMax / 8;
using BlockSet = std::array<std::uint8_t, kBlockSetBytesMax>;
inline std::size_t BlockSetBytes(std::uint32_t blocks) { return (blocks + 7) / 8; }

class ParameterBlocks {
 public:
  static constexpr DurationNs kWaitFirst = 200 * kMillisecond;  // until a version was measured
  static constexpr DurationNs kWaitMin = 10 * kMillisecond;
  static constexpr DurationNs kWaitMax = kSecond;
  static constexpr DurationNs kWaitLost = kMillisecond;  // if later blocks have arrived
  static constexpr std::uint32_t kLaterBlocks = 3;
  static constexpr std::uint32_t kQuestionsMax = 8;
  static constexpr TimeNs kNever = INT64_MAX;

  enum class Arrival : std::uint8_t {
    kNotAwaited,  // or repeated
    kNew,
    kLast,  // all have arrived; the chunk is not awaited any more
  };
  struct Question {
    ChunkIndex chunk{};
    bool over_tcp = false;  // there were enough questions about blocks
    BlockSet missing{};
  };

  void Resize(std::uint32_t chunks);
  // Waits for a new version of the chunk, which has a position now. REQUIRES: 1 to kChunkBlocksMax
  // blocks.
  void Await(ChunkIndex chunk, std::uint32_t blocks, TimeNs now);
  // Waits no more. Nothing happens if it was not awaited.
  void Forget(ChunkIndex chunk);
  bool IsAwaited(ChunkIndex chunk) const { return chunks_[chunk.value].left != 0; }
  std::uint32_t BlocksOf(ChunkIndex chunk) const { return chunks_[chunk.value].blocks; }
  // REQUIRES: the block belongs to the version that is awaited, or to the last one if none is.
  Arrival Arrive(ChunkIndex chunk, std::uint32_t block, TimeNs now);

  // How long to wait for a version before asking.
  DurationNs wait() const;
  // When Due() has something to do. It may be too early, never too late.
  TimeNs deadline() const { return deadline_; }
  // Calls ask(const Question&) for each chunk whose time has come.
  template <typename Ask>
  void Due(TimeNs now, const Ask& ask) {
    if (now < deadline_) return;
    deadline_ = kNever;
    for (const ChunkIndex chunk : awaited_) {
      Chunk& awaited = chunks_[chunk.value];
      if (awaited.due <= now) ask(MakeQuestion(chunk, now));
      deadline_ = std::min(deadline_, awaited.due);
    }
  }

 private:
  static constexpr std::uint32_t kPatienceMin = 64;  // in 1/64 of the measured time
  static constexpr std::uint32_t kPatienceMax = 8 * 64;
  struct Chunk {
    std::uint32_t blocks = 0;
    std::uint32_t left = 0;         // 0: not awaited
    std::uint32_t index = 0;        // in awaited_
    std::uint32_t questions = 0;    // since the last new block
    TimeNs asked_at = 0;            // 0: no block has to answer the last question
    std::uint32_t asked_count = 0;  // blocks of the last question; 0: not asked yet
    std::uint32_t repeated = 0;     // how many of them have come twice
    BlockSet asked{};
    std::uint64_t order = 0;         // versions that began before, and 1; 0: no block has arrived
    std::uint32_t later_blocks = 0;  // of versions that began later
    TimeNs since = 0;
    TimeNs due = kNever;
    BlockSet missing{};
  };
  Question MakeQuestion(ChunkIndex chunk, TimeNs now);
  void NoteRepeated(Chunk& chunk, std::uint32_t block);
  void NoteLater(const Chunk& arrived, TimeNs now);
  DurationNs AnswerWait() const;
  void NoteAnswer(Chunk& chunk, TimeNs now);

  std::vector<Chunk> chunks_;
  std::vector<ChunkIndex> awaited_;  // in no order
  std::uint64_t begun_ = 0;          // versions with a block that has arrived
  RoundTrip versions_;
  RoundTrip answers_;
  std::uint32_t patience_ = kPatienceMin;
  TimeNs deadline_ = kNever;
};

}  // namespace phub::aggregation
