#include "server/control/checkpoint/images.h"

#include <utility>

#include "server/control/jobs/grant_needs.h"
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

void RunLongOn(Context& context, Job& job, std::function<void()> work, std::function<void()> then) {
  ++job.long_work;
  context.turns.RunLong(job.key_count, job.account.tenant, std::move(work),
                        [&job, then = std::move(then)] {
                          --job.long_work;
                          then();
                        });
}

ChunkSource SourceOf(const Job& job) {
  ChunkSource source;
  source.batches.resize(job.shards.size());
  for (std::size_t core = 0; core < job.shards.size(); ++core) {
    for (const BatchRecord& batch : job.batches) source.batches[core].push_back(batch.parts[core]);
  }
  if (job.exchange != nullptr) {
    source.exchange.assign(job.exchange->shards.begin(), job.exchange->shards.end());
    source.exchange.insert(source.exchange.end(), job.exchange->batches.begin(),
                           job.exchange->batches.end());
  }
  return source;
}

std::vector<ChunkRef> ChunksOf(const ChunkSource& source) {
  std::vector<ChunkRef> chunks;
  for (std::size_t core = 0; core < source.batches.size(); ++core) {
    std::uint32_t index = 0;
    for (const std::shared_ptr<const KeyBatch>& part : source.batches[core]) {
      for (std::size_t i = 0; i < part->chunks.size(); ++i) {
        ChunkRef& place = chunks.emplace_back(CoreAt(core), index++, &part->chunks[i]);
        if (part->exchange != nullptr) place.home = part->exchange->chunks[i].tree->home;
      }
    }
  }
  return chunks;
}

absl::Status ImagesRefused(const Job& job, std::uint64_t bytes) {
  return absl::ResourceExhaustedError(
      fmt::format("job {}: the operating system refused to allocate {} for a copy of the job's "
                  "training state; free memory on the host",
                  job.name(), FormatBytes(bytes)));
}

std::vector<std::shared_ptr<CheckpointImage>> MapImages(const ChunkSource& source) {
  std::vector<std::shared_ptr<CheckpointImage>> images;
  for (const auto& batches : source.batches) {
    std::size_t key_count = 0;
    std::vector<const Chunk*> chunks;
    for (const std::shared_ptr<const KeyBatch>& part : batches) {
      key_count += part->keys.size();
      for (const Chunk& chunk : part->chunks) chunks.push_back(&chunk);
    }
    images.push_back(MakeCheckpointImage(chunks, key_count));
    if (images.back() == nullptr) return {};
  }
  return images;
}

void CoverImages(Context& context, Job& job,
                 const std::vector<std::shared_ptr<CheckpointImage>>& mapped, Grants::Then then) {
  Usage more;
  for (const std::shared_ptr<CheckpointImage>& image : mapped)
    more.memory_bytes += image->memory.bytes();
  ++job.long_work;
  context.Cover(job.account.tenant, more,
                [&job, then = std::move(then)](const absl::Status& status) {
                  --job.long_work;
                  then(OfJob(job.name(), status));
                });
}

absl::StatusOr<Images> AdmitImages(Context& context, const HostMemory& host_memory, Job& job,
                                   std::vector<std::shared_ptr<CheckpointImage>> mapped) {
  if (mapped.empty()) {
    return absl::ResourceExhaustedError(fmt::format(
        "job {}: phubd has no address space for a copy of the job's training state", job.name()));
  }
  Images images;
  std::vector<UnbackedMemory> memory;
  for (const std::shared_ptr<CheckpointImage>& image : mapped) {
    images.bytes += image->memory.bytes();
    memory.push_back({image->memory.data(), image->memory.bytes(), image});
  }
  if (absl::Status status = context.ledger.Reserve(job.account, images.bytes); !status.ok())
    return status;
  images.of_cores = std::move(mapped);
  if (!host_memory.TakePagesOf(std::move(memory), images.pages).ok()) {
    context.ledger.Return(job.account, images.bytes);
    return ImagesRefused(job, images.bytes);
  }
  job.memory_bytes += images.bytes;
  return images;
}

void FreeImages(Context& context, const HostMemory& host_memory, Job& job, Images images,
                std::function<void()> freed) {
  auto unwanted =
      std::make_shared<std::vector<std::shared_ptr<CheckpointImage>>>(std::move(images.of_cores));
  job.checkpoints->freeing.push_back(
      {host_memory.FreeLater(std::move(unwanted)), images.bytes, std::move(freed)});
  ReapImages(context, job);
}

void ReapImages(Context& context, Job& job) {
  std::list<FreeingImages>& freeing = job.checkpoints->freeing;
  for (auto each = freeing.begin(); each != freeing.end();) {
    if (each->done != nullptr && !each->done->load()) {
      ++each;
      continue;
    }
    context.ledger.Return(job.account, each->bytes);
    job.memory_bytes -= each->bytes;
    const std::function<void()> freed = std::move(each->freed);
    each = freeing.erase(each);
    if (freed) freed();
  }
}

}  // namespace phub::server
