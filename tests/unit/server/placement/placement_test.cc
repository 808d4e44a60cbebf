#include "server/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

namespace phub::server {
namespace {

constexpr std::uint64_t kChunkBytes = 64 * 1024;

std::vector<PlacementBin> Bins(std::uint32_t count) {
  std::vector<PlacementBin> bins;
  for (std::uint32_t core = 0; core < count; ++core) bins.push_back({CoreIndex{core}, 0});
  return bins;
}

std::vector<std::uint64_t> ModelKeyBytes(const std::string& name) {
  std::ifstream file(std::string(PHUB_MODELS_DIR) + "/" + name);
  std::string line;
  std::getline(file, line);  // header
  std::vector<std::uint64_t> bytes;
  while (std::getline(file, line)) {
    bytes.push_back(std::stoull(line.substr(line.find(',') + 1)) * sizeof(float));
  }
  return bytes;
}

double MaxOverMean(const std::vector<PlacementBin>& bins) {
  std::uint64_t max = 0;
  std::uint64_t sum = 0;
  for (const PlacementBin& bin : bins) {
    max = std::max(max, bin.load_bytes);
    sum += bin.load_bytes;
  }
  return static_cast<double>(max) * static_cast<double>(bins.size()) / static_cast<double>(sum);
}

std::vector<std::vector<std::uint32_t>> Numbers(const std::vector<std::vector<CoreIndex>>& cores) {
  std::vector<std::vector<std::uint32_t>> numbers(cores.size());
  for (std::size_t key = 0; key < cores.size(); ++key) {
    for (const CoreIndex core : cores[key]) numbers[key].push_back(core.value);
  }
  return numbers;
}

TEST(Placement, CutsKeysIntoChunksThatCoverThem) {
  EXPECT_EQ(ChunkCount(0, 64), 0u);
  EXPECT_EQ(ChunkCount(1, 64), 1u);
  EXPECT_EQ(ChunkCount(64, 64), 1u);
  EXPECT_EQ(ChunkCount(65, 64), 2u);
  EXPECT_EQ(ChunkBytes(65, 64, 0), 64u);
  EXPECT_EQ(ChunkBytes(65, 64, 1), 1u);
  EXPECT_EQ(ChunkBytes(128, 64, 1), 64u);
  // The largest size there is does not overflow.
  EXPECT_EQ(ChunkCount(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}

TEST(Placement, LargestChunksGoFirstAndTiesGoByOrder) {
  std::vector<PlacementBin> bins = Bins(2);
  // Chunks of 100: key 0 is 30, key 1 is 100 + 100 + 50, key 2 is 100.
  // Order: 1.0 -> core 0, 1.1 -> core 1, 2.0 -> core 0 (tie), 1.2 -> core 1, 0.0 -> core 1 (150).
  const std::uint64_t keys[] = {30, 250, 100};
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              testing::ElementsAre(testing::ElementsAre(1), testing::ElementsAre(0, 1, 1),
                                   testing::ElementsAre(0)));
  EXPECT_EQ(bins[0].load_bytes, 200u);
  EXPECT_EQ(bins[1].load_bytes, 180u);
}

TEST(Placement, LaterBatchesArePlacedOnTopOfLoads) {
  std::vector<PlacementBin> bins = Bins(3);
  bins[0].load_bytes = 1000;
  bins[2].load_bytes = 150;
  const std::uint64_t keys[] = {100, 100, 100};
  // Expect: core 1 until it is heavier than core 2; core 0 never.
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              testing::ElementsAre(testing::ElementsAre(1), testing::ElementsAre(1),
                                   testing::ElementsAre(2)));
  EXPECT_EQ(bins[0].load_bytes, 1000u);
}

TEST(Placement, BinsNameTheirCores) {
  std::vector<PlacementBin> bins = {{CoreIndex{7}, 0}, {CoreIndex{3}, 0}};
  const std::uint64_t keys[] = {10, 10};
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              testing::ElementsAre(testing::ElementsAre(7), testing::ElementsAre(3)));
}

class PlacementOfModels : public testing::TestWithParam<std::string> {};

TEST_P(PlacementOfModels, IsWithinOnePercentOverOneToSixteenCores) {
  const std::vector<std::uint64_t> keys = ModelKeyBytes(GetParam());
  ASSERT_GE(keys.size(), 16u);
  const std::uint64_t total = std::accumulate(keys.begin(), keys.end(), std::uint64_t{0});
  for (std::uint32_t cores = 1; cores <= 16; ++cores) {
    std::vector<PlacementBin> bins = Bins(cores);
    const auto placed = PlaceKeys(bins, keys, kChunkBytes);
    EXPECT_LE(MaxOverMean(bins), 1.01) << cores << " cores";
    // Expect: the loads are what the placement says, and nothing is lost.
    std::vector<std::uint64_t> loads(cores);
    for (std::size_t key = 0; key < keys.size(); ++key) {
      for (std::size_t chunk = 0; chunk < placed[key].size(); ++chunk) {
        loads[placed[key][chunk].value] += ChunkBytes(keys[key], kChunkBytes, chunk);
      }
    }
    EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::uint64_t{0}), total);
    for (std::uint32_t core = 0; core < cores; ++core)
      EXPECT_EQ(loads[core], bins[core].load_bytes);
  }
}

TEST_P(PlacementOfModels, IsTheSameEveryTimeAndBalancedKeyByKey) {
  const std::vector<std::uint64_t> keys = ModelKeyBytes(GetParam());
  std::vector<PlacementBin> bins = Bins(5);
  std::vector<PlacementBin> again = Bins(5);
  EXPECT_EQ(PlaceKeys(bins, keys, kChunkBytes), PlaceKeys(again, keys, kChunkBytes));
  // One batch per key, as a user who adds tensors one at a time does.
  std::vector<PlacementBin> one_by_one = Bins(5);
  for (const std::uint64_t key : keys) PlaceKeys(one_by_one, {&key, 1}, kChunkBytes);
  EXPECT_LE(MaxOverMean(one_by_one), 1.01);
}

INSTANTIATE_TEST_SUITE_P(Models, PlacementOfModels, testing::Values("resnet50.csv", "alexnet.csv"),
                         [](const auto& parameter) {
                           return parameter.param.substr(0, parameter.param.find('.'));
                         });

TEST(Placement, PlacesAHundredThousandChunks) {
  std::vector<PlacementBin> bins = Bins(16);
  const std::vector<std::uint64_t> keys(100, 1000 * kChunkBytes);
  const auto placed = PlaceKeys(bins, keys, kChunkBytes);
  EXPECT_EQ(placed.back().size(), 1000u);
  for (const PlacementBin& bin : bins) EXPECT_EQ(bin.load_bytes, 6250 * kChunkBytes);
}

}  // namespace
}  // namespace phub::server
