#include "server/control/keys/key_build.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "server/control/keys/batch_layout.h"
#include "server/control/keys/key_specs.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

constexpr std::size_t kCopiedChunksPerUnit = 1024;
// The answer names the core loop of each chunk, in one or two bytes.
constexpr std::size_t kBatchChunksMax = std::size_t{8} << 20;

absl::Status CheckBatchChunks(const KeyBuild& build) {
  std::size_t chunks = 0;
  for (const std::vector<BinIndex>& key : build.placement) chunks += key.size();
  if (chunks <= kBatchChunksMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "job {}: a batch of {} keys has {} chunks of {} bytes; the limit of a batch is {} chunks; "
      "use a larger chunk_bytes, or add the keys in several batches",
      build.job, build.placement.size(), chunks, build.chunk_bytes, kBatchChunksMax));
}

absl::Status CheckChunkCounts(const KeyBuild& build) {
  std::uint32_t most = 0;
  for (const NumberSpace& numbers : build.chunk_numbers) most = std::max(most, numbers.end());
  if (most <= kChunksPerShardMax) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "job {}: a core loop would own {} chunks of {} bytes; the limit is {} chunks; use a larger "
      "chunk_bytes",
      build.job, most, build.chunk_bytes, kChunksPerShardMax));
}

void DescribePlacement(KeyBuild& build) {
  BatchRecord& record = build.record;
  record.first_key = build.first_key;
  record.units = build.placement.size();
  auto placements = std::make_shared<v1::AddKeysResponse>();
  for (std::size_t i = 0; i < build.placement.size(); ++i) {
    v1::KeyPlacement& placed = *placements->add_placements();
    placed.set_key_index(record.first_key + static_cast<std::uint32_t>(i));
    std::uint32_t own = 0;
    for (const BinIndex bin : build.placement[i]) {
      placed.add_chunk_bins(bin.value);
      if (build.own_bins.Has(bin)) ++own;
    }
    for (const NumberRange& range : build.numbers[i]) placed.add_first_chunks(range.first);
    record.own_chunks.push_back(own);
    record.units += build.placement[i].size() / kCopiedChunksPerUnit;
    const ParameterLayout::KeyPlace& place = record.layout.keys[i];
    if (place.shared) placed.set_shared_offset(place.offset);
  }
  record.placements = std::move(placements);
}

// The bin of every chunk of every key. A key with parts is placed like several keys, since each
// part is cut into chunks on its own.
std::vector<std::vector<BinIndex>> Place(KeyBuild& build) {
  std::vector<std::uint64_t> part_bytes;
  std::vector<std::uint32_t> parts;  // [key]
  for (const v1::KeySpec& key : build.keys) {
    parts.push_back(PartsOf(key, build.ranks()).count());
    part_bytes.insert(part_bytes.end(), parts.back(), KeyBytes(key) / parts.back());
  }
  std::vector<std::vector<BinIndex>> placed = PlaceKeys(build.bins, part_bytes, build.chunk_bytes);
  std::vector<std::vector<BinIndex>> placement;
  auto part = placed.begin();
  for (const std::uint32_t count : parts) {
    placement.push_back(std::move(*part++));
    for (std::uint32_t i = 1; i < count; ++i, ++part) {
      placement.back().insert(placement.back().end(), part->begin(), part->end());
    }
  }
  return placement;
}

// Numbers the chunks of each key on each core loop, one after the other. Keys of the whole job
// follow all others; those of groups fill gaps that removed groups left.
void NumberChunks(KeyBuild& build) {
  for (const std::vector<BinIndex>& key : build.placement) {
    std::vector<NumberRange>& ranges = build.numbers.emplace_back();
    for (const BinIndex bin : key) {
      const auto range = std::ranges::find(ranges, bin, &NumberRange::bin);
      if (range != ranges.end()) {
        ++range->count;
      } else {
        ranges.push_back({.bin = bin, .first = 0, .count = 1});
      }
    }
    for (NumberRange& range : ranges) {
      NumberSpace& numbers = build.chunk_numbers[range.bin.value];
      range.first =
          build.group == nullptr ? numbers.Append(range.count) : numbers.Take(range.count);
    }
  }
  if (build.group == nullptr) return;
  build.first_key =
      kGroupKeysFirst + build.group_key_numbers.Take(static_cast<std::uint32_t>(build.keys.size()));
}

// Senders and receivers are numbered over the whole job; the parts of a key over its members.
void GiveNumbers(KeyBuild& build) {
  for (std::size_t i = 0; i < build.numbers.size(); ++i) {
    for (const NumberRange& range : build.numbers[i]) {
      if (!build.own_bins.Has(range.bin)) continue;
      build.parts[range.bin.value - build.own_bins.first][i].first_chunk = range.first;
    }
  }
  if (build.group == nullptr) return;
  const Members& members = *build.group->members;
  const auto in_job = [&](Rank member) {
    if (member == kEveryRank) return member;
    return Rank{members.RankOf(member.value).value + build.config.rank_base};
  };
  for (std::size_t core = 0; core < build.parts.size(); ++core) {
    for (KeyShardSpec& key : build.parts[core]) {
      key.members = &members;
      key.group_work = build.group->work[core].get();
      build.record.has_level[key.level] = true;
      for (KeyShardSpec::ChunkSpec& chunk : key.chunks) {
        chunk.sender = in_job(chunk.sender);
        chunk.receiver = in_job(chunk.receiver);
      }
    }
  }
}

// A message that another daemon cannot receive would block all later messages.
absl::Status DescribeForRacks(KeyBuild& build) {
  if (build.message_bytes_max == 0) return absl::OkStatus();
  v1::PeerMessage message;
  message.set_incarnation(build.incarnation.value);
  v1::PeerKeys& keys = *message.mutable_keys();
  keys.set_batch(build.batch);
  keys.set_rank(build.rank.value + build.config.rank_base);
  *keys.mutable_keys() = build.keys;
  build.for_racks.emplace(std::move(message));
  if (build.for_racks->bytes <= build.message_bytes_max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("job {}: a batch of {} keys has {} bytes, and at most {} can be sent to other "
                  "racks; add the keys in several batches",
                  build.job, build.keys.size(), build.for_racks->bytes, build.message_bytes_max));
}

// Maps the landing memory for partial sums of other racks, on every core loop.
absl::Status BuildExchangeParts(KeyBuild& build) {
  for (std::size_t core = 0; core < build.exchange_shards.size(); ++core) {
    const exchange::ShardExchange& shard = *build.exchange_shards[core];
    exchange::GroupPart group;
    if (build.group != nullptr)
      group = {.plan = build.group->exchange->plan,
               .rank_count = static_cast<std::uint32_t>(build.group->ranks.size()),
               .first_number = build.group_numbers[core]};
    build.exchange_batches.push_back(exchange::MakeExchangeBatch(
        shard, build.parts[core], build.choosers[core], build.group == nullptr ? nullptr : &group));
    if (build.exchange_batches.back() == nullptr)
      return absl::ResourceExhaustedError("out of memory");
    exchange::AddExchange(shard, *build.exchange_batches.back(), *build.record.parts[core]);
  }
  return absl::OkStatus();
}

}  // namespace

std::shared_ptr<KeyBuild> StartKeyBuild(const Job& job, Rank rank, const HostMemory& host_memory) {
  auto build = std::make_shared<KeyBuild>();
  build->job = job.name();
  build->config = job.config;
  build->chunk_bytes = job.settings.chunk_bytes;
  build->own_bins = job.own_bins;
  build->first_key = static_cast<std::uint32_t>(job.keys.size());
  // Workers map one version only, but a restarted rank reads the previous version: then nothing is
  // shared.
  build->share = host_memory.shares_memory() && job.config.versions() == 1;
  build->release_hook = host_memory.left().HookOf(job.account);
  build->bins = job.bins;
  build->chunk_numbers = job.chunk_numbers;
  build->names = job.key_names;
  build->rank = rank;
  build->batch = static_cast<std::uint32_t>(job.batches.size());
  build->incarnation = job.account.incarnation;
  if (job.exchange != nullptr) {
    build->exchange_shards = job.exchange->shards;
    build->choosers = job.exchange->choosers;
  }
  return build;
}

// The keys of the whole job are placed as if there were no groups, and those of a group of several
// racks as if there were only it, so that all racks place them alike.
void BuildForGroup(const Job& job, KeyBuild& build, const std::shared_ptr<Group>& group) {
  build.group = group;
  while (group->work.size() < job.shards.size())
    group->work.push_back(std::make_unique<WorkMetrics>());
  build.group_key_numbers = job.group_key_numbers;
  build.names = group->key_names;
  build.share = false;
  build.only_here = true;
  if (group->exchange != nullptr) {
    build.bins = group->exchange->bins;
    build.choosers = group->exchange->choosers;
    const std::uint32_t rack = job.config.rank_base / job.config.ranks_per_rack;
    const bool is_first =
        static_cast<std::uint32_t>(std::countr_zero(group->exchange->racks_with_members)) == rack;
    build.only_here = is_first && job.config.world_size > 0;
    return;
  }
  build.exchange_shards.clear();
  for (std::size_t i = 0; i < job.group_loads.size(); ++i)
    build.bins[i].load_bytes += job.group_loads[i];
}

void PlanKeys(KeyBuild& build) {
  build.refusal = ControlCounter::keys_refused_invalid;
  build.status = CheckKeys(build, *build.given);
  if (!build.status.ok()) return;
  build.keys = FillInDefaults(*build.given);
  build.status = DescribeForRacks(build);
  if (!build.status.ok()) return;
  for (const v1::KeySpec& key : build.keys) build.parameter_bytes += KeyBytes(key);
  build.placement = Place(build);
  NumberChunks(build);
  build.refusal = ControlCounter::keys_refused_capacity;
  build.status = CheckBatchChunks(build);
  if (build.status.ok()) build.status = CheckChunkCounts(build);
  if (!build.status.ok()) return;
  build.parts = CutForCores(build.keys, build.placement, build.own_bins, build.ranks(),
                            build.chunk_bytes, build.first_key);
  GiveNumbers(build);
  build.record.layout =
      LayOutParameters(build.keys, build.parts, build.config.versions(), build.share);
  build.bytes = build.record.layout.memory_bytes;
  for (const auto& part : build.parts) build.bytes += KeyBatchBytes(build.config, part);
  for (std::size_t core = 0; core < build.exchange_shards.size(); ++core) {
    const exchange::RackPlan& plan =
        build.group == nullptr ? build.exchange_shards[core]->plan : *build.group->exchange->plan;
    build.bytes += exchange::ExchangeBatchBytes(plan, build.parts[core], build.choosers[core]);
  }
}

void BuildKeys(KeyBuild& build) {
  BatchRecord& record = build.record;
  absl::StatusOr<BatchParameters> parameters =
      MakeParameters(record.layout, build.config.versions(), build.parts, build.release_hook);
  build.status = parameters.status();
  for (const auto& part : build.parts) {
    if (!build.status.ok()) return;
    record.parts.push_back(MakeKeyBatch(build.config, part));
    if (record.parts.back() == nullptr)
      build.status = absl::ResourceExhaustedError("out of memory");
  }
  if (build.status.ok()) build.status = BuildExchangeParts(build);
  if (!build.status.ok()) return;
  record.parameters = *std::move(parameters);
  record.first = build.rank;
  DescribePlacement(build);
  auto keys = std::make_shared<KeyList>();
  for (v1::KeySpec& key : build.keys) {
    build.names->insert(key.name());
    if (key.collective()) key.set_first_iteration(0);
    build.first_iterations.push_back(key.first_iteration());
    keys->push_back(std::move(key));
  }
  record.keys = std::move(keys);
}

}  // namespace phub::server
