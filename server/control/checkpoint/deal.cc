#include "server/control/checkpoint/deal.h"

#include <algorithm>
#include <utility>

#include "server/control/text.h"

namespace phub::server {
namespace {

// 0 if the key has no such tensor.
std::uint32_t ElementBytesOf(const ShardKey& key, v1::StateTensor tensor) {
  const std::size_t states = simd::StateCount(key.optimizer);
  const ElementType accumulation = numeric::AccumulationType(key.type);
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return numeric::ElementBytes(key.parameter_type);
    case v1::STATE_TENSOR_MASTERS: return key.has_masters() ? numeric::ElementBytes(key.type) : 0;
    case v1::STATE_TENSOR_OPTIMIZER_0: return states > 0 ? numeric::ElementBytes(accumulation) : 0;
    case v1::STATE_TENSOR_OPTIMIZER_1: return states > 1 ? numeric::ElementBytes(accumulation) : 0;
    default: return 0;
  }
}

}  // namespace

absl::Status CheckSpansRacks(const Job& job, bool has_to) {
  if (!has_to || job.rack_run != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("the request names a rack, but job {} does not span racks", job.name()));
}

bool IsNewestLoad(Job& job, std::uint64_t number) {
  if (number == 0) return true;
  if (number < job.checkpoints->newest_load) return false;
  job.checkpoints->newest_load = number;
  return true;
}

void DealOut(std::uint32_t rack_count, RackIndex self, const std::vector<ChunkRef>& chunks,
             const v1::LoadedState& state, CheckpointArrival& arrival) {
  arrival.dealt.resize(arrival.named.size());
  for (const ChunkRef& place : chunks) arrival.dealt[place.chunk->key->key.value].push_back(place);
  for (auto& key : arrival.dealt) {
    std::sort(key.begin(), key.end(), [](const ChunkRef& a, const ChunkRef& b) {
      return a.chunk->element_offset < b.chunk->element_offset;
    });
  }
  for (std::uint32_t rack = 0; rack < rack_count; ++rack) {
    if (rack == self.value) continue;
    v1::LoadStateRequest& first = arrival.for_racks[rack];
    first.set_iteration(state.iteration());
    *first.mutable_keys() = state.keys();
    *first.mutable_source() = state.source();
  }
}

// An invalid piece is returned unchanged: TakePiece reports what is wrong with it.
std::vector<v1::StatePiece> DealPiece(RackIndex self, CheckpointArrival& arrival,
                                      const v1::StatePiece& piece) {
  std::vector<v1::StatePiece> own;
  const std::uint32_t key = piece.key_index();
  if (key >= arrival.dealt.size() || !arrival.named[key] || arrival.dealt[key].empty()) {
    return {piece};
  }
  const std::vector<ChunkRef>& chunks = arrival.dealt[key];
  const std::uint32_t element_bytes = ElementBytesOf(*chunks[0].chunk->key, piece.tensor());
  if (element_bytes == 0 || piece.elements().empty() ||
      piece.elements().size() % element_bytes != 0) {
    return {piece};
  }
  auto place = std::upper_bound(chunks.begin(), chunks.end(), piece.element_offset(),
                                [](std::uint64_t offset, const ChunkRef& each) {
                                  return offset < each.chunk->element_offset;
                                });
  if (place == chunks.begin()) return {piece};  // belongs to another daemon of this rack
  --place;
  std::uint64_t offset = piece.element_offset();
  std::size_t from = 0;
  for (; from < piece.elements().size(); ++place) {
    const bool is_there = place != chunks.end() &&
                          offset - place->chunk->element_offset < place->chunk->element_count;
    if (!is_there) return {piece};
    const std::uint64_t room = place->chunk->element_offset + place->chunk->element_count - offset;
    const std::size_t bytes = std::min<std::size_t>(piece.elements().size() - from,
                                                    static_cast<std::size_t>(room) * element_bytes);
    v1::StatePiece& dealt = place->home == self
                                ? own.emplace_back()
                                : *arrival.for_racks[place->home.value].add_pieces();
    dealt.set_key_index(key);
    dealt.set_tensor(piece.tensor());
    dealt.set_element_offset(offset);
    dealt.set_elements(piece.elements().data() + from, bytes);
    from += bytes;
    offset += bytes / element_bytes;
  }
  return own;
}

}  // namespace phub::server
