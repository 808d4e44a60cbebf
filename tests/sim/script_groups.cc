// Groups of a simulated job, and their keys.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/sim/script.h"

namespace phub::sim {
namespace {

constexpr int kDrawnBefore = 24;

// Some ranks of one rack, or of the job.
std::vector<std::uint32_t> DrawMembers(SeededRandom& random, const JobScript& job) {
  const bool of_job = job.racks == 1 || random.Chance(1, 2);
  const std::uint32_t in_rack = of_job ? job.world_size : job.world_size / job.racks;
  const auto first = of_job ? 0 : in_rack * static_cast<std::uint32_t>(random.Below(job.racks));
  std::vector<std::uint32_t> ranks;
  while (ranks.empty()) {
    for (std::uint32_t rank = first; rank < first + in_rack; ++rank)
      if (random.Chance(1, 2)) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::vector<std::uint32_t> RacksOf(const JobScript& job, std::uint32_t group) {
  std::vector<std::uint32_t> racks;
  for (const std::uint32_t rank : job.groups[group].ranks) {
    const std::uint32_t rack = rank / (job.world_size / job.racks);
    if (racks.empty() || racks.back() != rack) racks.push_back(rack);
  }
  return racks;
}

namespace {

KeyScript DrawKeyOf(SeededRandom& random, const JobScript& job, std::uint32_t group) {
  const std::vector<std::uint32_t>& ranks = job.groups[group].ranks;
  KeyScript key;
  key.name = fmt::format("key of group {}", job.groups[group].name);
  key.element_count = static_cast<std::uint32_t>(1 + random.Below(4 * job.chunk_bytes / 4));
  key.batch = UINT32_MAX;
  key.group = group;
  key.collective = true;
  key.mean = random.Chance(1, 3);
  for (std::uint32_t i = 0; i < job.iterations; ++i) {
    RoundScript round;
    if (random.Chance(1, 5)) {
      round.operation = wire::RoundOperation::kAssign;
      round.root = ranks[random.Below(ranks.size())];
    }
    key.rounds.push_back(round);
  }
  if (random.Chance(1, 2) && RacksOf(job, group).size() == 1) MakePooled(random, ranks, key);
  return key;
}

}  // namespace

void DrawGroups(SeededRandom random, JobScript& job) {
  for (int i = 0; i < kDrawnBefore; ++i) (void)random.Below(2);
  if ((job.fate != Fate::kCompletes && job.racks == 1) || job.restart || job.sum_block != 0 ||
      job.removals > 0)
    return;
  if (random.Chance(1, 3)) return;
  const auto count = static_cast<std::uint32_t>(1 + random.Below(job.racks == 1 ? 3 : 6));
  for (std::uint32_t group = 0; group < count; ++group) {
    job.groups.push_back({.name = fmt::format("g{}", group), .ranks = DrawMembers(random, job)});
    job.keys.push_back(DrawKeyOf(random, job, group));
  }
  job.groups_after = static_cast<std::uint32_t>(1 + random.Below(4));
}

std::string DescribeGroups(const JobScript& job) {
  std::string text;
  for (const GroupScript& group : job.groups)
    text += fmt::format(" {}={{{}}}", group.name, fmt::join(group.ranks, ","));
  return text;
}

std::vector<std::uint32_t> MembersOf(const JobScript& job, const KeyScript& key) {
  if (key.group != kNoGroup) return job.groups[key.group].ranks;
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < job.world_size; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace phub::sim
