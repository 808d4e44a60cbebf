#include "server/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <string>

namespace phub::server {
namespace {

constexpr std::uint32_t kChunkBytes = 128 * 1024;

std::vector<PlacementBin> Bins(std::uint32_t count) {
  std::vector<PlacementBin> bins;
  for (std::uint32_t bin = 0; bin < count; ++bin) bins.push_back({BinIndex{bin}, 0});
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

std::vector<std::vector<std::uint32_t>> Numbers(const std::vector<std::vector<BinIndex>>& bins) {
  std::vector<std::vector<std::uint32_t>> numbers(bins.size());
  for (std::size_t key = 0; key < bins.size(); ++key) {
    for (const BinIndex bin : bins[key]) numbers[key].push_back(bin.value);
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
  // The largest possible size does not overflow.
  EXPECT_EQ(ChunkCount(UINT64_MAX, 2), UINT64_MAX / 2 + 1);
}

TEST(Placement, LargestChunksGoFirstAndTiesGoByOrder) {
  std::vector<PlacementBin> bins = Bins(2);
  // Chunks of 100: key 0 is 30, key 1 is 100 + 100 + 50, key 2 is 100.
  // Order: 1.0 -> bin 0, 1.1 -> bin 1, 2.0 -> bin 0 (tie), 1.2 -> bin 1, 0.0 -> bin 1 (150).
  const std::uint64_t keys[] = {30, 250, 100};
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              ::testing::ElementsAre(::testing::ElementsAre(1), ::testing::ElementsAre(0, 1, 1),
                                     ::testing::ElementsAre(0)));
  EXPECT_EQ(bins[0].load_bytes, 200u);
  EXPECT_EQ(bins[1].load_bytes, 180u);
}

TEST(Placement, LaterBatchesArePlacedOnTopOfLoads) {
  std::vector<PlacementBin> bins = Bins(3);
  bins[0].load_bytes = 1000;
  bins[2].load_bytes = 150;
  const std::uint64_t keys[] = {100, 100, 100};
  // Expect: bin 1 until it is heavier than bin 2; bin 0 never.
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              ::testing::ElementsAre(::testing::ElementsAre(1), ::testing::ElementsAre(1),
                                     ::testing::ElementsAre(2)));
  EXPECT_EQ(bins[0].load_bytes, 1000u);
}

TEST(Placement, BinsNameThemselves) {
  std::vector<PlacementBin> bins = {{BinIndex{7}, 0}, {BinIndex{3}, 0}};
  const std::uint64_t keys[] = {10, 10};
  EXPECT_THAT(Numbers(PlaceKeys(bins, keys, 100)),
              ::testing::ElementsAre(::testing::ElementsAre(7), ::testing::ElementsAre(3)));
}

class PlacementOfModels : public ::testing::TestWithParam<std::string> {};

TEST_P(PlacementOfModels, IsWithinOnePercentOverOneToThreeDaemonsOfOneToSixteenCores) {
  const std::vector<std::uint64_t> keys = ModelKeyBytes(GetParam());
  ASSERT_GE(keys.size(), 16u);
  const std::uint64_t total = std::accumulate(keys.begin(), keys.end(), std::uint64_t{0});
  for (std::uint32_t daemons = 1; daemons <= 3; ++daemons) {
    for (std::uint32_t cores = 1; cores <= 16; ++cores) {
      std::vector<PlacementBin> bins = BinsForJob(daemons * cores, GetParam());
      const std::uint32_t chunk_bytes = ChunkBytesForBins(kChunkBytes, daemons * cores);
      const auto placed = PlaceKeys(bins, keys, chunk_bytes);
      EXPECT_LE(MaxOverMean(bins), 1.01) << daemons << " daemons, " << cores << " cores";
      // Expect: the loads match the placement, and nothing is lost.
      std::vector<std::uint64_t> loads(bins.size());
      for (std::size_t key = 0; key < keys.size(); ++key) {
        for (std::size_t chunk = 0; chunk < placed[key].size(); ++chunk) {
          loads[placed[key][chunk].value] += ChunkBytes(keys[key], chunk_bytes, chunk);
        }
      }
      EXPECT_EQ(std::accumulate(loads.begin(), loads.end(), std::uint64_t{0}), total);
      for (const PlacementBin& bin : bins) EXPECT_EQ(loads[bin.bin.value], bin.load_bytes);
    }
  }
}

TEST_P(PlacementOfModels, IsWithinOnePercentWhateverTheTypesOfTheKeys) {
  // Every third key in doubles, every third in halves.
  std::vector<std::uint64_t> keys = ModelKeyBytes(GetParam());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % 3 == 1) keys[i] *= 2;
    if (i % 3 == 2) keys[i] /= 2;
  }
  for (const std::uint32_t bin_count : {2u, 6u, 16u}) {
    std::vector<PlacementBin> bins = BinsForJob(bin_count, GetParam());
    PlaceKeys(bins, keys, kChunkBytes);
    EXPECT_LE(MaxOverMean(bins), 1.01) << bin_count;
  }
}

TEST(Placement, ChunksAreHalvedInLargeRacksOnly) {
  EXPECT_EQ(ChunkBytesForBins(kChunkBytes, 1), kChunkBytes);
  EXPECT_EQ(ChunkBytesForBins(kChunkBytes, 16), kChunkBytes);
  EXPECT_EQ(ChunkBytesForBins(kChunkBytes, 17), kChunkBytes / 2);
  EXPECT_EQ(ChunkBytesForBins(kChunkBytes, 32), kChunkBytes / 2);
  EXPECT_EQ(ChunkBytesForBins(kChunkBytes, 33), kChunkBytes / 4);
  // Never to a size that a job may not have.
  EXPECT_EQ(ChunkBytesForBins(kChunkBytesMin, 1000), kChunkBytesMin);
  EXPECT_EQ(ChunkBytesForBins(3 * 192, 1000), 3u * 192);
}

TEST(Placement, JobsBeginAtBinsOfTheirOwn) {
  std::vector<int> first_chunks(6);
  for (int job = 0; job < 600; ++job) {
    std::vector<PlacementBin> bins = BinsForJob(6, "job-" + std::to_string(job));
    const std::uint64_t keys[] = {100};
    ++first_chunks[PlaceKeys(bins, keys, 1024)[0][0].value];
    // Expect: every bin once, whichever is first.
    std::vector<std::uint32_t> numbers;
    for (const PlacementBin& bin : bins) numbers.push_back(bin.bin.value);
    EXPECT_THAT(numbers, ::testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5));
  }
  for (const int count : first_chunks) {
    EXPECT_THAT(count, ::testing::AllOf(::testing::Gt(60), ::testing::Lt(140)));
  }
}

TEST_P(PlacementOfModels, IsTheSameEveryTimeAndBalancedKeyByKey) {
  const std::vector<std::uint64_t> keys = ModelKeyBytes(GetParam());
  std::vector<PlacementBin> bins = Bins(5);
  std::vector<PlacementBin> again = Bins(5);
  EXPECT_EQ(PlaceKeys(bins, keys, kChunkBytes), PlaceKeys(again, keys, kChunkBytes));
  // One batch per key, as when a user adds tensors one at a time.
  std::vector<PlacementBin> one_by_one = Bins(5);
  for (const std::uint64_t key : keys) PlaceKeys(one_by_one, {&key, 1}, kChunkBytes);
  EXPECT_LE(MaxOverMean(one_by_one), 1.01);
}

INSTANTIATE_TEST_SUITE_P(Models, PlacementOfModels,
                         ::testing::Values("resnet50.csv", "alexnet.csv"),
                         [](const auto& parameter) {
                           return parameter.param.substr(0, parameter.param.find('.'));
                         });

TEST(Placement, PlacesAHundredThousandChunks) {
  std::vector<PlacementBin> bins = Bins(16);
  const std::vector<std::uint64_t> keys(100, 1000u * kChunkBytes);
  const auto placed = PlaceKeys(bins, keys, kChunkBytes);
  EXPECT_EQ(placed.back().size(), 1000u);
  for (const PlacementBin& bin : bins) EXPECT_EQ(bin.load_bytes, 6250u * kChunkBytes);
}

}  // namespace
}  // namespace phub::server
