// The blocks of new parameters that a worker waits for: which have arrived, and when to ask for the
// others. Pure: no clock, no I/O. One thread. Allocates only in Resize().
//
// A version arrives as datagrams, one for each block, which may be lost, repeated or overtake each
// other. If nothing new has arrived for some time, the worker asks the core loop for the blocks
// that it misses, over tcp. Each question in vain doubles the time, and after kQuestionsMax of them
// the worker asks for the whole version over tcp. A block that comes twice after a question shows
// that the question was too early: the next ones wait longer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

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
  static constexpr DurationNs kWaitMin = 20 * kMillisecond;
  static constexpr DurationNs kWaitMax = kSecond;
  static constexpr std::uint32_t kQuestionsMax = 8;  // at least 3.5 s without a new block
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
  // Waits for a new version of the chunk. REQUIRES: 1 to kChunkBlocksMax blocks.
  void Await(ChunkIndex chunk, std::uint32_t blocks, TimeNs now);
  // Waits no more. Nothing happens if it was not awaited.
  void Forget(ChunkIndex chunk);
  bool IsAwaited(ChunkIndex chunk) const { return chunks_[chunk.value].left != 0; }
  std::uint32_t BlocksOf(ChunkIndex chunk) const { return chunks_[chunk.value].blocks; }
  // REQUIRES: the block belongs to the version that is awaited, or to the last one if none is.
  Arrival Arrive(ChunkIndex chunk, std::uint32_t block, TimeNs now);

  // When Due() has something to do. It may be too early, never too late.
  TimeNs deadline() const { return deadline_; }
  // Calls ask(const Question&) for each chunk whose time has come, if may_ask(ChunkIndex): before
  // it has a position there are no parameters to be asked for.
  template <typename MayAsk, typename Ask>
  void Due(TimeNs now, const MayAsk& may_ask, const Ask& ask) {
    if (now < deadline_) return;
    deadline_ = kNever;
    for (const ChunkIndex chunk : awaited_) {
      Chunk& awaited = chunks_[chunk.value];
      if (awaited.due <= now) {
        if (may_ask(chunk)) {
          ask(MakeQuestion(chunk, now));
        } else {
          awaited.due = now + wait_;
        }
      }
      deadline_ = std::min(deadline_, awaited.due);
    }
  }

 private:
  struct Chunk {
    std::uint32_t blocks = 0;
    std::uint32_t left = 0;       // 0: not awaited
    std::uint32_t index = 0;      // in awaited_
    std::uint32_t questions = 0;  // since the last new block
    bool was_asked = false;
    TimeNs due = kNever;
    BlockSet missing{};
  };
  Question MakeQuestion(ChunkIndex chunk, TimeNs now);

  std::vector<Chunk> chunks_;
  std::vector<ChunkIndex> awaited_;  // in no order
  DurationNs wait_ = kWaitMin;
  TimeNs deadline_ = kNever;
};

}  // namespace phub::aggregation
