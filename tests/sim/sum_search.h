// An exhaustive search over everything that can happen to a job whose gradients are summed in the
// network (sum_world.h), breadth first, so that the trace of an error is among the shortest.
#pragma once

#include <cstddef>
#include <string>

#include "tests/sim/sum_world.h"

namespace phub::aggregation::search {

struct Outcome {
  std::string error{};  // empty: none. Otherwise the error and the events that lead to it
  std::size_t states = 0;
  std::size_t finished = 0;  // how many of them have the job complete
  bool truncated = false;    // the limit was reached
};

// Checks in all states that can be reached that
//   - every sum is exact, and no rank or daemon receives what it must not, and
//   - the job can still finish if no further trouble happens.
Outcome Search(const Shape& shape, std::size_t states_max);

}  // namespace phub::aggregation::search
