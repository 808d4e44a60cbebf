// Checks which keys a checkpoint load names, and checks each piece that arrives.
#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "server/control/checkpoint/deal.h"
#include "server/control/checkpoint/loads.h"
#include "server/control/jobs/hyper_parameters.h"

namespace phub::server {
namespace {

static_assert(std::endian::native == std::endian::little, "pieces carry little-endian elements");

constexpr std::size_t kPieceBytesMax = 1 << 20;

const char* NameOf(v1::StateTensor tensor) {
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return "parameters";
    case v1::STATE_TENSOR_MASTERS: return "masters";
    case v1::STATE_TENSOR_OPTIMIZER_0: return "first optimizer state";
    case v1::STATE_TENSOR_OPTIMIZER_1: return "second optimizer state";
    default: return "unknown tensor";
  }
}

}  // namespace

// Makes room for the elements that this daemon must receive. The parts are put in order by counting
// those of each key, without memory of its own for every key.
void Loads::PrepareParts(const ChunkSource& source, std::size_t key_count,
                         CheckpointArrival& arrival) {
  arrival.named.assign(key_count, false);
  arrival.first_parts.assign(key_count + 1, 0);
  const std::vector<ChunkRef> chunks = ChunksOf(source);
  for (const ChunkRef& place : chunks) {
    if (place.chunk->IsSaved()) ++arrival.first_parts[place.chunk->key->key.value + 1];
  }
  for (std::size_t key = 0; key < key_count; ++key)
    arrival.first_parts[key + 1] += arrival.first_parts[key];
  arrival.parts.resize(arrival.first_parts.back());
  std::vector<std::uint32_t> next = arrival.first_parts;
  for (const ChunkRef& place : chunks) {
    if (!place.chunk->IsSaved()) continue;
    const ShardKey& key = *place.chunk->key;
    const auto& image = arrival.state->images.of_cores[place.core.value]->chunks[place.index];
    arrival.parts[next[key.key.value]++] = {
        .place = place, .tensor_count = static_cast<std::uint8_t>(TensorsOf(key, image).size())};
  }
  for (std::uint32_t key = 0; key < key_count; ++key) {
    std::ranges::sort(arrival.PartsOf(key), {}, [](const CheckpointArrival::Part& part) {
      return part.place.chunk->element_offset;
    });
  }
}

// Chunks whose home is another daemon get no elements here, only the count of reductions.
void Loads::CountReductionsElsewhere(std::span<const ChunkRef> chunks, std::size_t key_count,
                                     CheckpointArrival& arrival) {
  std::vector<std::uint64_t> reductions(key_count, 0);
  for (const v1::KeyStateInfo& info : arrival.state->description->keys())
    reductions[info.key_index()] = info.reductions();
  for (const ChunkRef& place : chunks) {
    const std::uint32_t key = place.chunk->key->key.value;
    if (place.chunk->is_home || !arrival.named[key]) continue;
    auto& image = arrival.state->images.of_cores[place.core.value]->chunks[place.index];
    image.reductions = reductions[key];
    image.ready.store(true, std::memory_order_release);
  }
}

// Records which keys the load names and counts the elements that this daemon must receive.
absl::Status Loads::NameKeys(const std::string& job, const KeyTable& job_keys,
                             std::span<const v1::KeyStateInfo* const> keys,
                             CheckpointArrival& arrival) {
  const std::uint64_t iteration = arrival.state->description->iteration();
  for (const v1::KeyStateInfo* each : keys) {
    const v1::KeyStateInfo& info = *each;
    if (info.key_index() >= arrival.named.size() || arrival.named[info.key_index()]) {
      return absl::InvalidArgumentError(fmt::format(
          "job {}: the checkpoint lists key number {}, which {}", job, info.key_index(),
          info.key_index() < arrival.named.size() ? "is listed twice" : "the job does not have"));
    }
    if (job_keys[info.key_index()].collective()) {
      return absl::InvalidArgumentError(
          fmt::format("job {} key {}: the checkpoint lists it, but it is a collective key, which "
                      "checkpoints do not contain",
                      job, job_keys[info.key_index()].name()));
    }
    if (!IsFinite(info.hyper_parameters())) {
      return absl::InvalidArgumentError(
          fmt::format("job {} key {}: a hyper-parameter in the checkpoint is not finite", job,
                      job_keys[info.key_index()].name()));
    }
    arrival.named[info.key_index()] = true;
    arrival.state->first_iterations.emplace_back(
        info.key_index(), iteration - std::min(info.reductions(), iteration));
    for (const CheckpointArrival::Part& part : arrival.PartsOf(info.key_index())) {
      auto& image = arrival.state->images.of_cores[part.place.core.value]->chunks[part.place.index];
      image.reductions = info.reductions();
      // The core loops see it only if the checkpoint becomes complete.
      image.ready.store(true, std::memory_order_release);
      arrival.elements_left += std::uint64_t{part.place.chunk->element_count} * part.tensor_count;
    }
  }
  return absl::OkStatus();
}

// Keys that did not fit into the first message: those from `next` to `end`. It advances `next`.
absl::Status Loads::NameMoreKeys(const Job& job, const v1::LoadStateRequest& part,
                                 CheckpointArrival& arrival, int& next, int end) {
  if (job.rack_run != nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("job {} spans racks, so the first message must list all keys of the checkpoint",
                    job.name()));
  }
  std::vector<const v1::KeyStateInfo*> keys;
  for (; next < end; ++next) {
    *arrival.state->description->add_keys() = part.keys(next);
    keys.push_back(&part.keys(next));
  }
  return NameKeys(job.name(), job.keys, keys, arrival);
}

absl::Status Loads::TakePiece(const Job& job, CheckpointArrival& arrival,
                              const v1::StatePiece& piece) {
  const auto wrong = [&](const std::string& what) {
    const std::string key = piece.key_index() < job.keys.size()
                                ? job.keys[piece.key_index()].name()
                                : fmt::format("number {}", piece.key_index());
    return absl::InvalidArgumentError(fmt::format(
        "job {} key {}: a piece of the checkpoint ({} from element {}, {} bytes) {}", job.name(),
        key, NameOf(piece.tensor()), piece.element_offset(), piece.elements().size(), what));
  };
  if (piece.key_index() >= arrival.named.size() || !arrival.named[piece.key_index()]) {
    return wrong("belongs to a key that the load does not list");
  }
  if (piece.elements().empty() || piece.elements().size() > kPieceBytesMax) {
    return wrong(fmt::format("must have 1 to {} bytes", kPieceBytesMax));
  }
  const std::span<CheckpointArrival::Part> parts = arrival.PartsOf(piece.key_index());
  auto part = std::upper_bound(parts.begin(), parts.end(), piece.element_offset(),
                               [](std::uint64_t offset, const CheckpointArrival::Part& each) {
                                 return offset < each.place.chunk->element_offset;
                               });
  if (part == parts.begin()) return wrong("is not within this daemon's chunks");
  --part;
  std::uint64_t offset = piece.element_offset();
  const char* from = piece.elements().data();
  std::size_t bytes = piece.elements().size();
  for (; bytes > 0; ++part) {
    if (part == parts.end()) return wrong("extends beyond this daemon's chunks");
    const Chunk& chunk = *part->place.chunk;
    const auto& image =
        arrival.state->images.of_cores[part->place.core.value]->chunks[part->place.index];
    const std::vector<TensorView> tensors = TensorsOf(*chunk.key, image);
    const auto tensor = std::find_if(tensors.begin(), tensors.end(), [&](const TensorView& each) {
      return each.tensor == piece.tensor();
    });
    if (tensor == tensors.end()) return wrong("belongs to a tensor that the key does not have");
    if (bytes % tensor->element_bytes != 0) {
      return wrong(
          fmt::format("is not a multiple of the element size of {} bytes", tensor->element_bytes));
    }
    if (offset < chunk.element_offset || offset - chunk.element_offset >= chunk.element_count) {
      return wrong("is not within this daemon's chunks");
    }
    std::uint32_t& come = part->elements_come[static_cast<std::size_t>(tensor - tensors.begin())];
    if (offset != chunk.element_offset + come) {
      return wrong(
          fmt::format("is out of order: expected element {}", chunk.element_offset + come));
    }
    const std::size_t count =
        std::min<std::size_t>(bytes / tensor->element_bytes, chunk.element_count - come);
    std::memcpy(tensor->data + std::size_t{come} * tensor->element_bytes, from,
                count * tensor->element_bytes);
    come += static_cast<std::uint32_t>(count);
    arrival.elements_left -= count;
    offset += count;
    from += count * tensor->element_bytes;
    bytes -= count * tensor->element_bytes;
  }
  return absl::OkStatus();
}

}  // namespace phub::server
