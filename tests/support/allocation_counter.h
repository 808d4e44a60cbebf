// Counts what the linked program allocates through operator new, to prove that a hot path does
// not. Link phub_allocation_counter into the test; the hook is the whole program's.
#pragma once

#include <cstddef>

namespace phub::testing {

// Allocations by the calling thread since it started.
std::size_t AllocationCount();

}  // namespace phub::testing
