// How the sums of a job that spans racks come about, chunk by chunk, told by the plan alone: what
// oracles fold by that compare bits. Straight from the forest, since what daemons make of it is
// what is tested; where a chunk lies and which tree it goes by are the product's pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/element_type.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::oracle {

// At one rack: its ranks, in rank order, then other racks' sums. At an aggregator: those alone.
struct RackSum {
  bool has_ranks = true;
  std::uint32_t rack = 0;
  std::vector<RackSum> children;
};

struct SummedKey {
  numeric::ElementType type{};
  std::uint64_t element_count = 0;
  std::uint32_t batch = 0;  // keys are added batch by batch
};

struct SummedJob {
  std::string name;
  std::uint32_t core_count = 1;  // of a rack, over all its daemons
  std::uint32_t chunk_bytes = 0;
  std::vector<SummedKey> keys;
};

// The plan's, and others: with those a comparison has to fail, or it compares nothing.
enum class Order : std::uint8_t { kPlan, kChildrenReversed, kOwnRanksLast, kNextTree };

// [key][chunk]: at the home. REQUIRES: daemons stand for the topology's aggregators, if it has any.
std::vector<std::vector<RackSum>> SumsOf(const plan::Topology& topology, const plan::Forest& forest,
                                         const SummedJob& job, Order order = Order::kPlan);

// own(rack) is the sum of a rack's ranks; both return T.
template <class T, class Own, class Combine>
T Fold(const RackSum& sum, const Own& own, const Combine& combine) {
  auto child = sum.children.begin();
  T value = sum.has_ranks ? own(sum.rack) : Fold<T>(*child++, own, combine);
  for (; child != sum.children.end(); ++child) {
    value = combine(value, Fold<T>(*child, own, combine));
  }
  return value;
}

}  // namespace phub::oracle
