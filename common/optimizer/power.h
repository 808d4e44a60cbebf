// Powers for bias corrections. Pure; any thread.
#pragma once

#include <cstdint>

namespace phub::optimizer {

// base^exponent for 0 <= base <= 1, to the last bit or nearly so, and the same bits everywhere: a C
// library's pow promises neither.
double PowerOf(double base, std::uint64_t exponent);

}  // namespace phub::optimizer
