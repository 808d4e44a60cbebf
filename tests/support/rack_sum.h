// The order of the sums of a job that spans racks, chunk by chunk, derived from the plan alone.
// Oracles that compare bits fold in this order. It is computed from the forest directly, since the
// daemons' own derivation is under test. A chunk's place and tree come from the product's pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/element_type.h"
#include "common/plan/forest.h"
#include "common/plan/topology.h"

namespace phub::oracle {

// At one rack: the terms are its ranks, in rank order, then other racks' sums. At an aggregator:
// only those sums.
struct RackSum {
  bool has_ranks = true;
  std::uint32_t rack = 0;
  std::vector<RackSum> children;
};

struct SummedKey {
  numeric::ElementType type{};
  std::uint64_t element_count = 0;
  std::uint32_t batch = 0;  // keys are added in batches
};

struct SummedJob {
  std::string name;
  std::uint32_t core_count = 1;  // in a rack, over all its daemons
  std::uint32_t chunk_bytes = 0;
  std::vector<SummedKey> keys;
};

// The plan's order, and other orders. A comparison with one of those must fail; otherwise it checks
// nothing.
enum class Order : std::uint8_t { kPlan, kChildrenReversed, kOwnRanksLast, kNextTree };

// By key and chunk: the sum at the home. REQUIRES: there is a daemon for each aggregator of the
// topology, if it has any.
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
