// Counts the linked program's allocations through operator new, to prove that a hot path does not
// allocate. Link phub_allocation_counter into the test; the hook covers the whole program.
#pragma once

#include <cstddef>

namespace phub::testing {

// Allocations by the calling thread since it started.
std::size_t AllocationCount();

}  // namespace phub::testing
