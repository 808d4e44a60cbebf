// Powers for bias corrections. Pure; any thread.
#pragma once

#include <cstdint>

namespace phub::optimizer {

// base^exponent for 0 <= base <= 1, accurate to about the last bit and with the same bits on every
// machine. The C library's pow guarantees neither.
double PowerOf(double base, std::uint64_t exponent);

}  // namespace phub::optimizer
