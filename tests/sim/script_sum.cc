// Simulated jobs with sum=fixed.
#include "tests/sim/script.h"
#include "tests/support/fixed_sum_reference.h"

namespace phub::sim {

void DrawSum(SeededRandom random, JobScript& job) {
  constexpr int kDrawnByOthers = 8;
  for (int i = 0; i < kDrawnByOthers; ++i) (void)random.Below(2);
  if (!random.Chance(1, 4)) return;
  // Chunks have 64 to 176 elements, so they have several blocks, the last one partial, or one.
  constexpr std::uint32_t kBlocks[] = {16, 24, 37, 64, 350};
  job.sum_block = kBlocks[random.Below(std::size(kBlocks))];
}

std::vector<float> SumInFixedPoint(const JobScript& job, const KeyScript& key,
                                   const std::vector<std::vector<float>>& gradients) {
  const KeyParts parts{.movement = key.movement, .ranks = job.world_size, .root = Rank{key.root}};
  const ChunkMap chunks(key.element_count, parts,
                        job.chunk_bytes / static_cast<std::uint32_t>(sizeof(float)));
  std::vector<std::size_t> sizes;
  for (std::uint64_t i = 0; i < chunks.count(); ++i) sizes.push_back(chunks.At(i).element_count);
  return oracle::SumInFixedPoint(gradients, job.sum_block, sizes);
}

}  // namespace phub::sim
