#include "bench/kernels/case.h"

namespace phub::bench {
namespace {

constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBf16,
                                  ElementType::kF64, ElementType::kI32, ElementType::kI64,
                                  ElementType::kU8};
constexpr ElementType kHalves[] = {ElementType::kF16, ElementType::kBf16};
constexpr GradientEncoding kEncodings[] = {{numeric::Encoding::kInt8, 0},
                                           {numeric::Encoding::kTopK, 10'000},
                                           {numeric::Encoding::kTopK, 100'000},
                                           {numeric::Encoding::kRandomK, 10'000}};
constexpr Operation kUpdates[] = {Operation::kSgd, Operation::kMomentum, Operation::kAdam};

// Lists the cases of one place and one number of threads.
class Lister {
 public:
  Lister(Place place, std::uint32_t threads, std::vector<Case>& cases)
      : place_(place), threads_(threads), cases_(cases) {}

  void Add(Operation operation, ElementType wire, ElementType type, std::uint32_t ranks) {
    cases_.push_back({place_, threads_, operation, wire, type, ranks, {}});
  }

  void AddSums() {
    for (std::uint32_t ranks = kRanksLeast; ranks <= kRanksMost; ++ranks) {
      Add(Operation::kSum, ElementType::kF32, ElementType::kF32, ranks);
    }
    for (const ElementType type : kTypes) {
      if (type == ElementType::kF32) continue;
      for (const std::uint32_t ranks : {2u, 4u, 8u, 16u}) Add(Operation::kSum, type, type, ranks);
    }
    for (const ElementType half : kHalves) Add(Operation::kFold, half, half, 4);
    for (const std::uint32_t ranks : {2u, 4u, 8u}) {
      Add(Operation::kSumToAll, ElementType::kF32, ElementType::kF32, ranks);
    }
  }

  void AddFixedSums() {
    for (const std::uint32_t ranks : {2u, 4u, 8u, 16u}) {
      Add(Operation::kSumFixed, ElementType::kF32, ElementType::kF32, ranks);
    }
    for (const ElementType half : kHalves) Add(Operation::kSumFixed, half, half, 4);
  }

  void AddUpdates() {
    for (const Operation update : kUpdates) {
      for (const std::uint32_t ranks : {2u, 4u, 8u, 16u}) {
        Add(update, ElementType::kF32, ElementType::kF32, ranks);
      }
      for (const ElementType half : kHalves) Add(update, half, ElementType::kF32, 4);
    }
  }

  void AddConversions() {
    for (const ElementType half : kHalves) {
      Add(Operation::kConvert, half, ElementType::kF32, 1);
      Add(Operation::kConvert, ElementType::kF32, half, 1);
    }
  }

  void AddEncoded() {
    const ElementType f32 = ElementType::kF32;
    for (const GradientEncoding& encoding : kEncodings) {
      for (const Operation operation : {Operation::kFold, Operation::kMomentum}) {
        cases_.push_back({place_, threads_, operation, f32, f32, 4, encoding});
      }
    }
    cases_.push_back({place_, threads_, Operation::kFold, f32, f32, 16, kEncodings[0]});
  }

  // The most frequent work of a core loop: momentum and a plain sum, of 4 ranks.
  void AddCommon() {
    const ElementType f32 = ElementType::kF32;
    Add(Operation::kSum, f32, f32, 4);
    Add(Operation::kSumFixed, f32, f32, 4);
    Add(Operation::kSumToAll, f32, f32, 4);
    for (const Operation update : kUpdates) Add(update, f32, f32, 4);
    Add(Operation::kMomentum, f32, f32, 16);
    Add(Operation::kMomentum, ElementType::kBf16, f32, 4);
  }

 private:
  Place place_;
  std::uint32_t threads_;
  std::vector<Case>& cases_;
};

std::vector<std::uint32_t> ThreadCounts(std::uint32_t threads) {
  if (threads == 1) return {1};
  return {1, threads};
}

}  // namespace

const char* ToString(Operation operation) {
  switch (operation) {
    case Operation::kSum: return "sum";
    case Operation::kSumToAll: return "sum-to-all";
    case Operation::kFold: return "fold";
    case Operation::kSumFixed: return "sum-fixed";
    case Operation::kSgd: return "sgd";
    case Operation::kMomentum: return "momentum";
    case Operation::kAdam: return "adam";
    case Operation::kConvert: return "convert";
  }
  return "unknown";
}

const char* ToString(Place place) {
  switch (place) {
    case Place::kL1: return "l1";
    case Place::kL2: return "l2";
    case Place::kMemory: return "memory";
    case Place::kChunks: return "chunks";
    case Place::kStaged: return "staged";
  }
  return "unknown";
}

std::string NameOf(const Case& each, std::size_t footprint_bytes) {
  std::string types = numeric::ToString(each.wire);
  if (each.encoded()) {
    types = numeric::ToString(each.encoding.kind);
    if (numeric::IsSparse(each.encoding.kind)) {
      types += std::to_string(100 * each.encoding.kept_millionths / numeric::kMillion) + "%";
    }
    types += std::string("-") + numeric::ToString(each.type);
  }
  if (each.type != each.wire) types += std::string("-") + numeric::ToString(each.type);
  return std::string("kernels/") + ToString(each.place) + "-t" + std::to_string(each.threads) +
         "/" + std::to_string(footprint_bytes) + "/w" + std::to_string(each.ranks) + "/" + types +
         "/" + ToString(each.operation);
}

std::vector<Case> AllCases(std::uint32_t threads) {
  std::vector<Case> cases;
  for (const std::uint32_t count : ThreadCounts(threads)) {
    for (const Place place : {Place::kL1, Place::kL2, Place::kMemory}) {
      Lister list(place, count, cases);
      list.AddSums();
      list.AddFixedSums();
      list.AddUpdates();
      list.AddConversions();
      if (IsInCache(place)) list.AddEncoded();
    }
    for (const Place place : {Place::kChunks, Place::kStaged}) {
      Lister list(place, count, cases);
      list.AddCommon();
      list.AddEncoded();
    }
  }
  return cases;
}

std::vector<Case> SmokeCases(std::uint32_t threads) {
  std::vector<Case> cases;
  Lister cached(Place::kL2, 1, cases);
  for (const ElementType type : kTypes) cached.Add(Operation::kSum, type, type, 9);
  cached.Add(Operation::kFold, ElementType::kF16, ElementType::kF16, 2);
  cached.AddFixedSums();
  cached.Add(Operation::kSumToAll, ElementType::kF32, ElementType::kF32, 3);
  cached.AddUpdates();
  cached.AddConversions();
  cached.AddEncoded();
  Lister(Place::kMemory, threads, cases).AddCommon();
  for (const Place place : {Place::kChunks, Place::kStaged}) {
    Lister list(place, threads, cases);
    list.AddCommon();
    list.AddEncoded();
  }
  return cases;
}

}  // namespace phub::bench
