// A lane's part in sums in the network (docs/aggregation.md): which chunks are announced instead of
// pushed, and the datagrams to the aggregator. The decisions are those of
// aggregation::WorkerStream.
//
// A chunk's round is announced if a stream is open when its turn to be sent comes. Then its blocks
// go to the aggregator as the core loop assigns a position. It is pushed over tcp like any other if
// the stream ends before, or if the core loop asks for it. What is sent again on a new lane follows
// from the state of the stream: announced rounds are announced again.
//
// The new parameters of an announced round come as datagrams, too, and are copied to the caller's
// memory. They are taken only while the lane is open and the chunk was sent on it.
//
// Exists only in jobs that may have streams. Owned by the engine, its thread; rounds allocate
// nothing once the stream is open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/lane.h"
#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/parameter_blocks.h"
#include "common/aggregation/ports.h"
#include "common/aggregation/stream_terms.h"
#include "common/aggregation/worker_stream.h"
#include "common/base/clock.h"
#include "common/wire/message.h"

namespace phub::client {

class LaneSums {
 public:
  // The references must outlive it. A block has `block` elements, and the job
  // `ranks` ranks.
  LaneSums(Lane& lane, const std::vector<EngineKey*>& keys, aggregation::DatagramSocket& socket,
           std::uint32_t block, std::uint32_t ranks);

  // The lane has more chunks, or fewer.
  void AddChunks();
  void RemoveChunks();

  // Whether the chunk's round is to be announced, if it is sent now.
  bool Announces(std::uint32_t chunk) const;
  // Writes an announcement's header and payload. REQUIRES: Announces(chunk). Returns the payload.
  std::span<const std::byte> Announce(std::uint32_t chunk, wire::MessageHeader& header,
                                      std::span<std::byte, wire::kInlineBytesMax> bytes);
  // The chunk's round was sent, for the first time or again. True: for the first time.
  bool NoteSent(std::uint32_t chunk, bool announced);

  // --- Messages of the core loop. kNone unless the lane must be closed.
  LaneFault Take(const wire::MessageHeader& header, std::span<const std::byte> payload, TimeNs now);
  // The chunk's round is complete: its reply has arrived, or the last datagram.
  void NoteParameters(std::uint32_t chunk, Iteration iteration);
  // The chunks that the last Take() has made ready to be sent again. With `all`, chunks that were
  // not sent yet may go another way, too.
  std::span<const std::uint32_t> again() const { return again_; }
  bool all_changed() const { return all_changed_; }

  // Receives a batch of datagrams, and finds out what to ask for. True if there were any.
  bool Poll(TimeNs now);
  // The chunks whose parameters are complete since the last Poll().
  std::span<const std::uint32_t> complete() const { return complete_; }
  // What it is time to ask for.
  std::span<const aggregation::ParameterBlocks::Question> questions() const { return questions_; }
  // The payload of the kMissing. Valid until the next Poll().
  std::span<const std::byte> PayloadOf(
      const aggregation::ParameterBlocks::Question& question) const {
    if (question.over_tcp) return {};
    return std::as_bytes(std::span(question.missing))
        .first(aggregation::BlockSetBytes(blocks_.BlocksOf(question.chunk)));
  }
  TimeNs deadline() const {
    // Questions need a lane.
    const bool can_ask = port_ && lane_.state == Lane::State::kOpen;
    return can_ask ? blocks_.deadline() : aggregation::ParameterBlocks::kNever;
  }

  std::uint64_t payloads_sent() const { return port_ ? port_->payloads_sent() : 0; }

 private:
  LaneFault TakeStream(std::span<const std::byte> payload);
  LaneFault TakeAssignment(const wire::MessageHeader& header, std::span<const std::byte> payload,
                           TimeNs now);
  void Begin(const aggregation::Geometry& geometry);
  void Perform();
  bool Has(ChunkIndex chunk) const { return chunk.value < stream_->chunk_count(); }
  std::span<std::uint8_t> OwnExponents(std::uint32_t chunk) { return ExponentsIn(own_, chunk); }
  std::span<std::uint8_t> ExponentsIn(std::vector<std::uint8_t>& exponents, std::uint32_t chunk);
  std::span<const float> ValuesOf(std::uint32_t chunk, std::uint32_t block);
  aggregation::WorkerPort::Payload PayloadOf(ChunkIndex chunk, std::uint32_t block);
  std::uint32_t ParameterBlocksOf(std::uint32_t chunk) const;
  void TakeBlock(const phub_parameters& about, std::span<const std::byte> bytes);
  void AskForBlocks(TimeNs now);

  Lane& lane_;
  const std::vector<EngineKey*>& keys_;
  aggregation::DatagramSocket& socket_;
  const std::uint32_t block_;
  const std::uint32_t ranks_;
  // None until the first stream is open.
  std::optional<aggregation::WorkerStream> stream_;
  std::optional<aggregation::WorkerPort> port_;
  // By chunk, geometry.blocks each: those of this rank's gradient, and those that were assigned.
  std::vector<std::uint8_t> own_, assigned_;
  aggregation::ParameterBlocks blocks_;
  std::vector<std::uint32_t> again_, complete_;
  std::vector<aggregation::ParameterBlocks::Question> questions_;
  bool all_changed_ = false;
  TimeNs now_ = 0;  // when Poll() was last called
  // Scratch.
  aggregation::WorkerActions actions_, over_tcp_;
  std::vector<float> values_;
  std::vector<std::int32_t> integers_;
};

}  // namespace phub::client
