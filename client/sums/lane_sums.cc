#include "client/sums/lane_sums.h"

#include <algorithm>
#include <cstring>

#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::client {

using aggregation::LeaseNumber;
using aggregation::WorkerAction;

namespace {

// A stream has fewer open positions. What is left out is asked for when its time comes again.
constexpr std::size_t kQuestionsPerPoll = 64;

}  // namespace

LaneSums::LaneSums(Lane& lane, const std::vector<EngineKey*>& keys,
                   aggregation::DatagramSocket& socket, std::uint32_t block, std::uint32_t ranks)
    : lane_(lane),
      keys_(keys),
      socket_(socket),
      block_(block),
      ranks_(ranks),
      values_(block),
      integers_(block) {}

std::span<std::uint8_t> LaneSums::ExponentsIn(std::vector<std::uint8_t>& exponents,
                                              std::uint32_t chunk) {
  return std::span(exponents).subspan(std::size_t{chunk} * stream_->geometry().blocks,
                                      stream_->BlocksOf(ChunkIndex{chunk}));
}

void LaneSums::AddChunks() {
  if (!stream_) return;
  const auto end = static_cast<std::uint32_t>(
      std::min<std::size_t>(lane_.chunks.size(), aggregation::kStreamChunksMax));
  for (std::uint32_t c = stream_->chunk_count(); c < end; ++c) {
    const LaneChunk& chunk = lane_.chunks[c];
    const std::uint32_t blocks =
        chunk.is_streamed ? aggregation::BlocksOf(chunk.element_count, block_) : 0;
    stream_->AddChunk(blocks <= stream_->geometry().blocks ? blocks : 0);
  }
  own_.resize(std::size_t{end} * stream_->geometry().blocks);
  assigned_.resize(own_.size());
  blocks_.Resize(end);
  again_.reserve(end);
  complete_.reserve(end);
  questions_.reserve(kQuestionsPerPoll);
  actions_.reserve(std::size_t{end} + stream_->geometry().blocks);
  over_tcp_.reserve(actions_.capacity());
}

void LaneSums::RemoveChunks() {
  if (!stream_) return;
  stream_->RemoveChunks(ChunkIndex{static_cast<std::uint32_t>(lane_.chunks.size())});
  blocks_.Resize(stream_->chunk_count());
}

// Rounds that were pushed before there was a stream stay on tcp.
void LaneSums::Begin(const aggregation::Geometry& geometry) {
  stream_.emplace(geometry);
  AddChunks();
  for (std::uint32_t c = 0; c < stream_->chunk_count(); ++c) {
    if (lane_.chunks[c].phase == LaneChunk::Phase::kSent) NoteSent(c, /*announced=*/false);
  }
  port_.emplace(
      geometry, *stream_, socket_,
      [this](ChunkIndex chunk, Iteration /*iteration*/, std::uint32_t block) {
        return PayloadOf(chunk, block);
      },
      [this](const phub_parameters& about, std::span<const std::byte> bytes) {
        TakeBlock(about, bytes);
      });
}

bool LaneSums::Announces(std::uint32_t c) const {
  if (!stream_ || c >= stream_->chunk_count()) return false;
  const ChunkIndex chunk{c};
  if (!stream_->IsIdle(chunk)) return !stream_->IsOverTcp(chunk);
  const EngineKey& key = *keys_[lane_.keys[lane_.chunks[c].lane_key].key];
  return stream_->lease() != aggregation::kNoLease && stream_->BlocksOf(chunk) != 0 &&
         !key.pulling && key.operation == wire::RoundOperation::kReduce && key.gradients != nullptr;
}

std::span<const float> LaneSums::ValuesOf(std::uint32_t c, std::uint32_t block) {
  const LaneChunk& chunk = lane_.chunks[c];
  const EngineKey& key = *keys_[lane_.keys[chunk.lane_key].key];
  const std::uint32_t first = block * block_;
  const std::uint32_t count = std::min(block_, chunk.element_count - first);
  const std::byte* const from = key.gradients + GradientOffset(key, chunk) +
                                std::size_t{first} * numeric::ElementBytes(key.payload_type);
  // In place, unless the caller's array is not aligned.
  if (key.payload_type == numeric::ElementType::kF32 &&
      reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0)
    return {reinterpret_cast<const float*>(from), count};
  simd::Convert(key.payload_type, from, numeric::ElementType::kF32,
                reinterpret_cast<std::byte*>(values_.data()), count);
  return std::span(values_).first(count);
}

std::span<const std::byte> LaneSums::Announce(std::uint32_t c, wire::MessageHeader& header,
                                              std::span<std::byte, wire::kInlineBytesMax> bytes) {
  const EngineKey& key = *keys_[lane_.keys[lane_.chunks[c].lane_key].key];
  header.version = wire::kStreamVersion;
  header.kind = wire::MessageKind::kAnnounce;
  header.slot = SlotIndex{stream_->lease().value};
  header.type = key.payload_type;
  header.hyper_version = key.hyper_version;
  const std::span<std::uint8_t> own = OwnExponents(c);
  for (std::uint32_t block = 0; block < own.size(); ++block) {
    own[block] = aggregation::ExponentOf(ValuesOf(c, block));
    bytes[block] = std::byte{own[block]};
  }
  header.payload_bytes = static_cast<std::uint32_t>(own.size());
  return bytes.first(own.size());
}

bool LaneSums::NoteSent(std::uint32_t c, bool announced) {
  if (!stream_ || c >= stream_->chunk_count()) return true;
  const ChunkIndex chunk{c};
  if (!stream_->IsIdle(chunk)) return false;
  const LaneChunk& sent = lane_.chunks[c];
  const Iteration iteration = IterationOf(*keys_[lane_.keys[sent.lane_key].key], sent);
  actions_.clear();
  if (announced) {
    stream_->Push(chunk, iteration, actions_);
  } else {
    stream_->PushOverTcp(chunk, iteration, actions_);
  }
  actions_.clear();  // it was sent already
  return true;
}

// The parameters of this rank's gradients are its own business: a caller that changes them while
// they are summed gets a wrong sum, as over tcp.
aggregation::WorkerPort::Payload LaneSums::PayloadOf(ChunkIndex chunk, std::uint32_t block) {
  const std::span<const float> values = ValuesOf(chunk.value, block);
  const std::uint8_t exponent = ExponentsIn(assigned_, chunk.value)[block];
  const std::span<std::int32_t> integers = std::span(integers_).first(values.size());
  if (aggregation::ExponentOf(values) > exponent) {
    std::ranges::fill(integers, 0);
  } else {
    aggregation::ToFixed(values, exponent, ranks_, integers);
  }
  return {integers, exponent};
}

LaneFault LaneSums::Take(const wire::MessageHeader& header, std::span<const std::byte> payload,
                         TimeNs now) {
  again_.clear();
  all_changed_ = false;
  actions_.clear();
  switch (header.kind) {
    case wire::MessageKind::kStreamIs: {
      const LaneFault fault = TakeStream(payload);
      if (fault == LaneFault::kNone) Perform();
      return fault;
    }
    case wire::MessageKind::kAssign: return TakeAssignment(header, payload, now);
    case wire::MessageKind::kUseTcp:
      if (!stream_ || !stream_->UseTcp(header.chunk, header.iteration, actions_))
        return LaneFault::kChunkRange;
      Perform();
      return LaneFault::kNone;
    default: return LaneFault::kUnexpectedKind;
  }
}

LaneFault LaneSums::TakeStream(std::span<const std::byte> payload) {
  all_changed_ = true;
  if (payload.empty()) {
    if (stream_) stream_->StreamIs(aggregation::kNoLease, actions_);
    return LaneFault::kNone;
  }
  aggregation::StreamTerms terms;
  if (!aggregation::DecodeStreamTerms(payload, terms) || terms.worker_count != ranks_ ||
      terms.count_max != block_)
    return LaneFault::kStream;
  if (!stream_) Begin(terms.geometry);
  const aggregation::Geometry& geometry = stream_->geometry();
  if (terms.geometry.positions != geometry.positions || terms.geometry.blocks != geometry.blocks)
    return LaneFault::kStream;
  // The same stream again, on a new lane: its open positions go on.
  if (terms.lease == stream_->lease()) return LaneFault::kNone;
  port_->Open(aggregation::LeaseOf(terms), terms.worker);
  stream_->StreamIs(terms.lease, actions_);
  return LaneFault::kNone;
}

LaneFault LaneSums::TakeAssignment(const wire::MessageHeader& header,
                                   std::span<const std::byte> payload, TimeNs now) {
  if (!stream_ || !Has(header.chunk)) return LaneFault::kChunkRange;
  const std::span<std::uint8_t> own = OwnExponents(header.chunk.value);
  const std::span<std::uint8_t> assigned = ExponentsIn(assigned_, header.chunk.value);
  if (payload.size() != own.size()) return LaneFault::kStream;
  if (!stream_->Assign(LeaseNumber{header.slot.value}, aggregation::Position{header.value_bits},
                       header.chunk, header.iteration, actions_))
    return LaneFault::kNotAsked;
  if (actions_.empty()) return LaneFault::kNone;  // again, on a new lane
  blocks_.Await(header.chunk, ParameterBlocksOf(header.chunk.value), now);
  for (std::size_t block = 0; block < own.size(); ++block) {
    assigned[block] = std::to_integer<std::uint8_t>(payload[block]);
    if (assigned[block] < own[block]) return LaneFault::kStream;
  }
  Perform();
  return LaneFault::kNone;
}

void LaneSums::Perform() {
  over_tcp_.clear();
  if (port_) port_->Perform(actions_, over_tcp_);
  actions_.clear();
  for (const WorkerAction& action : over_tcp_) {
    blocks_.Forget(action.chunk);  // the reply comes over tcp
    LaneChunk& chunk = lane_.chunks[action.chunk.value];
    if (chunk.phase != LaneChunk::Phase::kSent) continue;  // it waits to be sent anyway
    chunk.phase = LaneChunk::Phase::kReady;
    lane_.landing[action.chunk.value] = {};
    --lane_.chunks_sent;
    again_.push_back(action.chunk.value);
  }
}

void LaneSums::NoteParameters(std::uint32_t chunk, Iteration iteration) {
  if (!stream_ || chunk >= stream_->chunk_count()) return;
  stream_->Parameters(ChunkIndex{chunk}, iteration);
  blocks_.Forget(ChunkIndex{chunk});
}

// --- Parameters

std::uint32_t LaneSums::ParameterBlocksOf(std::uint32_t c) const {
  const LaneChunk& chunk = lane_.chunks[c];
  const LaneKey& lane_key = lane_.keys[chunk.lane_key];
  const std::uint32_t bytes = ReplyBytes(*keys_[lane_key.key], lane_key, chunk);
  const auto block = static_cast<std::uint32_t>(block_ * sizeof(float));
  return (bytes + block - 1) / block;
}

void LaneSums::TakeBlock(const phub_parameters& about, std::span<const std::byte> bytes) {
  const ChunkIndex chunk{about.chunk};
  if (!Has(chunk) || lane_.state != Lane::State::kOpen) return;
  // A recorded or late block belongs to an older version.
  if (static_cast<std::uint32_t>(stream_->IterationOf(chunk).value) != about.version) return;
  const transport::LandingSlot& landing = lane_.landing[about.chunk];
  const std::size_t first = std::size_t{about.block} * block_ * sizeof(float);
  if (blocks_.IsAwaited(chunk)) {
    // It is closed while the chunk waits for a new lane; then the block is asked for again.
    if (first >= landing.bytes_max) return;
    // The end of the last block may be padding.
    const std::size_t expected = std::min(block_ * sizeof(float), landing.bytes_max - first);
    if (bytes.size() != (expected + 3) / 4 * 4) return;
    std::memcpy(landing.data + first, bytes.data(), expected);
  }
  if (blocks_.Arrive(chunk, about.block, now_) == aggregation::ParameterBlocks::Arrival::kLast)
    complete_.push_back(about.chunk);
}

void LaneSums::AskForBlocks(TimeNs now) {
  if (lane_.state != Lane::State::kOpen) return;
  blocks_.Due(now, [this](const aggregation::ParameterBlocks::Question& question) {
    // What waits to be sent on a new lane is announced again, which asks for all blocks.
    const bool is_sent = lane_.chunks[question.chunk.value].phase == LaneChunk::Phase::kSent;
    if (is_sent && questions_.size() < kQuestionsPerPoll) questions_.push_back(question);
  });
}

bool LaneSums::Poll(TimeNs now) {
  now_ = now;
  complete_.clear();
  questions_.clear();
  if (!port_ || stream_->lease() == aggregation::kNoLease) return false;
  const bool received = port_->Receive();
  AskForBlocks(now);
  return received;
}

}  // namespace phub::client
