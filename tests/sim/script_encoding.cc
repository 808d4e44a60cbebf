// Simulated keys whose gradients are encoded on the wire.
#include <fmt/format.h>

#include "tests/sim/script.h"

namespace phub::sim {

void DrawEncoding(SeededRandom random, const JobScript& job, KeyScript& key) {
  constexpr int kDrawnByOthers = 9;
  for (int i = 0; i < kDrawnByOthers; ++i) (void)random.Below(2);
  const bool may = key.gradients == GradientKind::kHash && job.sum_block == 0 &&
                   key.movement == KeyMovement::kAllReduce;
  if (!may || random.Chance(2, 3)) return;
  const std::uint64_t last = job.restart ? 1 : numeric::kEncodingMax;
  key.encoding.kind = static_cast<numeric::Encoding>(1 + random.Below(last));
  if (!numeric::IsSparse(key.encoding.kind)) return;
  constexpr std::uint32_t kShares[] = {1, 20'000, 300'000, numeric::kKeptMax};
  key.encoding.kept_millionths = kShares[random.Below(4)];
}

std::string DescribeKey(const KeyScript& key) {
  return fmt::format("{}:{} {} {} {} {}@{}{} ", key.name, key.element_count, ToString(key.movement),
                     key.gradients == GradientKind::kLanes ? "lanes" : "hash",
                     simd::ToString(key.optimizer), ToString(key.encoding.kind),
                     key.encoding.kept_millionths, key.collective ? " collective" : "");
}

}  // namespace phub::sim
