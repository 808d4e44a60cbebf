#include "bench/kernels/workload.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/aggregation/fixed_point.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/units.h"

namespace phub::bench {
namespace {

using numeric::ElementBytes;

// Staging slots of a lane: few enough that they stay in the L2 or L3 cache.
constexpr std::size_t kStagingSlots = 4;
// Payloads begin at a multiple of this, which the loops of ceilings.h need.
std::size_t PayloadStride(const GradientEncoding& encoding, std::size_t count) {
  return (numeric::EncodedBytes(encoding, count) + kStepBytes - 1) / kStepBytes * kStepBytes;
}

}  // namespace

std::size_t Workload::ArenaBytes(std::size_t footprint_bytes, std::size_t chunk_bytes) {
  return 2 * footprint_bytes + kRanksMost * kStagingSlots * chunk_bytes + kMebibyte;
}

bool Workload::HasOutputs(const Case& each) {
  return !IsFused(each.operation) || each.wire != each.type;
}

// Like core loops, streams results for all workers' own buffers that do not fit the caches, and
// single results that are larger than any cache.
bool Workload::Streams(const Case& each) {
  if (each.operation == Operation::kSumToAll) return each.place >= Place::kMemory;
  return each.operation == Operation::kSum && each.place == Place::kMemory;
}

bool Workload::HasArithmetic(const Case& each) {
  const bool sums_halves = numeric::IsHalf(each.wire) && each.operation != Operation::kConvert;
  return sums_halves || each.encoded() || each.operation == Operation::kAdam;
}

Workload::Workload(const Case& each, std::size_t footprint_bytes, std::size_t chunk_bytes,
                   std::byte* memory, std::uint64_t seed)
    : case_(each), round_(RoundOfCase()) {
  ListArrays();
  LayOut(footprint_bytes, chunk_bytes, memory);
  Cut(chunk_bytes / ElementBytes(case_.wire), seed);
}

void Workload::ListArrays() {
  for (std::uint32_t rank = 0; rank < case_.ranks; ++rank) {
    arrays_.push_back({Role::kInput, Access::kRead, case_.wire});
  }
  if (IsFused(case_.operation)) {
    arrays_.push_back({Role::kParameters, Access::kUpdate, case_.type});
    for (std::size_t i = 0; i < simd::StateCount(round_.optimizer); ++i) {
      arrays_.push_back({Role::kState, Access::kUpdate, numeric::AccumulationType(case_.type)});
    }
    if (case_.wire != case_.type) arrays_.push_back({Role::kOutput, Access::kWrite, case_.wire});
    return;
  }
  const bool widens =
      case_.operation == Operation::kFold || case_.operation == Operation::kSumFixed;
  const ElementType type = widens ? numeric::AccumulationType(case_.type) : case_.type;
  const std::uint32_t outputs = case_.operation == Operation::kSumToAll ? case_.ranks : 1;
  for (std::uint32_t i = 0; i < outputs; ++i) {
    arrays_.push_back({Role::kOutput, Access::kWrite, type});
  }
}

void Workload::LayOut(std::size_t footprint_bytes, std::size_t chunk_bytes, std::byte* memory) {
  const bool staged = case_.place == Place::kStaged;
  const bool chunks = case_.place == Place::kChunks || staged;
  const std::size_t chunk_elements = chunk_bytes / ElementBytes(case_.wire);
  std::size_t element_bytes = 0;
  std::size_t narrowest = sizeof(std::uint64_t);
  for (const Array& array : arrays_) {
    narrowest = std::min(narrowest, std::size_t{ElementBytes(array.type)});
    if (!staged || array.role != Role::kInput) element_bytes += ElementBytes(array.type);
  }
  if (case_.encoded()) {
    if (!staged) {
      element_bytes -= case_.ranks * (sizeof(float) - 1);  // an int8, or up to 6 of 100 bytes
    }
    narrowest = 1;
  }
  const std::size_t multiple = chunks ? chunk_elements : kStepBytes / narrowest;
  element_count_ = std::max(footprint_bytes / element_bytes / multiple, std::size_t{1}) * multiple;
  input_element_count_ = staged ? kStagingSlots * chunk_elements : element_count_;
  piece_elements_ = chunks ? chunk_elements : element_count_;
  std::byte* at = memory;
  for (Array& array : arrays_) {
    const bool is_input = array.role == Role::kInput;
    array.data = at;
    at += is_input ? InputBytes() : element_count_ * ElementBytes(array.type);
  }
  footprint_bytes_ = static_cast<std::size_t>(at - memory);
  sums_.data = at;
}

std::size_t Workload::InputBytes() const {
  if (!case_.encoded()) return input_element_count_ * ElementBytes(case_.wire);
  return input_element_count_ / piece_elements_ * PayloadStride(case_.encoding, piece_elements_);
}

std::byte* Workload::InputOf(const Array& array, const Piece& piece) const {
  if (!case_.encoded()) return array.At(piece.input_begin);
  return array.data +
         piece.input_begin / piece_elements_ * PayloadStride(case_.encoding, piece_elements_);
}

simd::Encoded Workload::EncodedOf(const Piece& piece) const {
  return {case_.encoding, case_.encoded() ? piece.count : 0, 0};
}

void Workload::Cut(std::size_t chunk_elements, std::uint64_t seed) {
  if (case_.place != Place::kChunks && case_.place != Place::kStaged) {
    pieces_.push_back({0, 0, element_count_});
    return;
  }
  for (std::size_t begin = 0; begin < element_count_; begin += chunk_elements) {
    pieces_.push_back({begin, begin, std::min(chunk_elements, element_count_ - begin)});
  }
  SeededRandom random(seed);
  for (std::size_t i = pieces_.size(); i > 1; --i) {
    std::swap(pieces_[i - 1], pieces_[random.Below(i)]);
  }
  if (case_.place != Place::kStaged) return;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    pieces_[i].input_begin = i % kStagingSlots * chunk_elements;
  }
}

simd::Round Workload::RoundOfCase() const {
  simd::Round round;
  round.wire = case_.wire;
  round.type = case_.type;
  round.reply = case_.wire;
  round.ranks = case_.ranks;
  // Keeps parameters in the normal range, however often they are updated.
  round.arguments.learning_rate = 1e-3;
  round.arguments.momentum = 0.9;
  round.arguments.beta1 = 0.9;
  round.arguments.beta2 = 0.999;
  round.arguments.epsilon = 1e-8;
  round.arguments.step = 1000;
  if (case_.operation == Operation::kSgd) round.optimizer = simd::Optimizer::kSgd;
  if (case_.operation == Operation::kMomentum) round.optimizer = simd::Optimizer::kMomentum;
  if (case_.operation == Operation::kAdam) round.optimizer = simd::Optimizer::kAdam;
  return round;
}

std::size_t Workload::traffic_bytes() const {
  std::size_t bytes = 0;
  for (const Array& array : arrays_) {
    const bool is_payload = array.role == Role::kInput && case_.encoded();
    bytes += is_payload ? pieces_.size() * numeric::EncodedBytes(case_.encoding, piece_elements_)
                        : element_count_ * ElementBytes(array.type) *
                              (array.access == Access::kUpdate ? 2 : 1);
  }
  return bytes;
}

std::size_t Workload::separate_traffic_bytes() const {
  return traffic_bytes() + 2 * element_count_ * ElementBytes(sums_.type);
}

std::span<const std::byte* const> Workload::Inputs(const Piece& piece) {
  inputs_.clear();
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput) inputs_.push_back(InputOf(array, piece));
  }
  return inputs_;
}

simd::RoundMemory Workload::MemoryOf(const Piece& piece) {
  simd::RoundMemory memory;
  std::size_t states = 0;
  replies_.clear();
  for (const Array& array : arrays_) {
    std::byte* const at = array.At(piece.begin);
    if (array.role == Role::kParameters) memory.parameters = memory.next_parameters = at;
    if (array.role == Role::kState) memory.state[states++] = at;
    if (array.role == Role::kOutput) replies_.push_back(at);
  }
  if (case_.operation == Operation::kSum) {
    memory.next_parameters = replies_[0];
  } else {
    memory.replies = replies_;
  }
  memory.streams_results = Streams(case_);
  return memory;
}

void Workload::RunPiece(const Piece& piece) {
  const std::span<const std::byte* const> inputs = Inputs(piece);
  if (case_.operation == Operation::kConvert) {
    simd::Convert(case_.wire, inputs[0], case_.type, arrays_.back().At(piece.begin), piece.count);
  } else if (case_.operation == Operation::kFold) {
    simd::Fold(case_.wire, simd::Reduction::kSum, {nullptr, inputs}, piece.count,
               arrays_.back().At(piece.begin), EncodedOf(piece));
  } else if (case_.operation == Operation::kSumFixed) {
    simd::SumFixed(case_.wire, aggregation::kFixedBlockDefault, inputs, piece.count,
                   arrays_.back().At(piece.begin));
  } else {
    round_.encoded = EncodedOf(piece);
    simd::ApplyRound(round_, {nullptr, inputs}, piece.count, MemoryOf(piece));
  }
}

void Workload::Run() {
  for (const Piece& piece : pieces_) RunPiece(piece);
}

void Workload::RunSeparately() {
  for (const Piece& piece : pieces_) {
    simd::Fold(case_.wire, simd::Reduction::kSum, {nullptr, Inputs(piece)}, piece.count,
               sums_.At(piece.begin), EncodedOf(piece));
  }
  round_.encoded = {};
  for (const Piece& piece : pieces_) {
    simd::ApplyRound(round_, {sums_.At(piece.begin), {}}, piece.count, MemoryOf(piece));
  }
}

void Workload::RunCeiling(const CeilingForm& form) {
  for (const Piece& piece : pieces_) {
    streams_.clear();
    for (const Array& array : arrays_) {
      const bool is_input = array.role == Role::kInput;
      if (is_input && case_.encoded()) {
        LoadOnly(InputOf(array, piece), PayloadStride(case_.encoding, piece.count));
        continue;
      }
      streams_.push_back({array.access, array.At(is_input ? piece.input_begin : piece.begin),
                          ElementBytes(array.type)});
    }
    MoveStreams(streams_, piece.count, form);
  }
}

void Workload::RunArithmetic() {
  if (case_.encoded()) {
    for (const Piece& piece : pieces_) {
      DecodeAndAdd(case_.encoding, Inputs(piece), piece.count,
                   reinterpret_cast<float*>(arrays_.back().At(piece.begin)));
    }
    return;
  }
  for (const Array& array : arrays_) {
    if (array.role == Role::kInput && numeric::IsHalf(array.type)) {
      WidenAndAdd(array.type, array.data, element_count_ * ElementBytes(array.type));
    } else if (array.role == Role::kOutput && array.type == ElementType::kF16) {
      NarrowToF16(array.data, element_count_ * ElementBytes(array.type));
    }
  }
  if (case_.operation != Operation::kAdam) return;
  const Array& second_moments =
      *std::find_if(arrays_.rbegin(), arrays_.rend(),
                    [](const Array& array) { return array.role == Role::kState; });
  DivideAndRoot(reinterpret_cast<const float*>(second_moments.data), element_count_);
}

void Workload::RunLoads() { LoadOnly(arrays_.front().data, footprint_bytes_); }

}  // namespace phub::bench
