// Which keys of a simulated job are pooled, removed and added again.
#include <algorithm>

#include "tests/sim/script.h"

namespace phub::sim {

void DrawPoolsAndRemovals(SeededRandom random, JobScript& job) {
  DrawPools(random, job);
  KeyScript& last = job.keys.back();
  if (job.fate != Fate::kCompletes || job.restart || !last.collective) return;
  if (random.Chance(1, 2) && job.keys[job.keys.size() - 2].batch == last.batch) ++last.batch;
  const auto stays = [&](const KeyScript& key) {
    return key.batch == last.batch && !key.collective;
  };
  if (std::ranges::none_of(job.keys, stays))
    job.removals = static_cast<std::uint32_t>(random.Below(3));
}

}  // namespace phub::sim
