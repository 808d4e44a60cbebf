#include "server/control/checkpoint/images.h"

#include <utility>

#include "server/control/text.h"
#include "server/core/exchange/shard_exchange.h"
namespace phub::server {

std::vector<TensorView> TensorsOf(const ShardKey& key, const CheckpointImage::ChunkImage& image) {
  using numeric::ElementBytes;
  std::vector<TensorView> tensors;
  const auto add = [&](v1::StateTensor tensor, ElementType type, std::byte* data) {
    if (data != nullptr) tensors.push_back({tensor, ElementBytes(type), data});
  };
  const ElementType accumulation = numeric::AccumulationType(key.type);
  add(v1::STATE_TENSOR_PARAMETERS, key.parameter_type, image.parameters);
  add(v1::STATE_TENSOR_MASTERS, key.type, image.masters);
  add(v1::STATE_TENSOR_OPTIMIZER_0, accumulation, image.state[0]);
  add(v1::STATE_TENSOR_OPTIMIZER_1, accumulation, image.state[1]);
  return tensors;
}

std::vector<ChunkRef> ChunksOf(const Job& job) {
  std::vector<ChunkRef> chunks;
  for (std::size_t core = 0; core < job.shards.size(); ++core) {
    std::uint32_t index = 0;
    for (const BatchRecord& batch : job.batches) {
      const KeyBatch& part = *batch.parts[core];
      for (std::size_t i = 0; i < part.chunks.size(); ++i) {
        ChunkRef& place = chunks.emplace_back(CoreAt(core), index++, &part.chunks[i]);
        if (part.exchange != nullptr) place.home = part.exchange->chunks[i].tree->home;
      }
    }
  }
  return chunks;
}

absl::StatusOr<std::vector<std::unique_ptr<CheckpointImage>>> MakeImages(Context& context, Job& job,
                                                                         std::uint64_t& bytes) {
  bytes = 0;
  for (const auto& shard : job.shards) bytes += CheckpointImageBytes(*shard);
  if (absl::Status status = context.ledger.Reserve(job.account, bytes); !status.ok()) return status;
  const SilenceGuard guard(context);
  std::vector<std::unique_ptr<CheckpointImage>> images;
  for (const auto& shard : job.shards) {
    images.push_back(MakeCheckpointImage(*shard));
    if (images.back() != nullptr) continue;
    context.ledger.Return(job.account, bytes);
    return absl::ResourceExhaustedError(
        fmt::format("job {}: the operating system refused to allocate {} for a copy of the job's "
                    "training state; free memory on the host",
                    job.name(), FormatBytes(bytes)));
  }
  job.memory_bytes += bytes;
  return images;
}

}  // namespace phub::server
