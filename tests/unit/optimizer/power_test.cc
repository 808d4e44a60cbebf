// The powers in Adam's bias corrections.
#include "common/optimizer/power.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace phub::optimizer {
namespace {

TEST(Power, PowersAreTheNearestDouble) {
  for (const double base : {0.0, 0.5, 0.9, 0.95, 0.98, 0.99, 0.999, 0.9999, 1.0}) {
    for (std::uint64_t exponent = 0; exponent < 2'000'000; exponent += 1 + exponent / 7) {
      const double power = PowerOf(base, exponent);
      const long double expected =
          std::pow(static_cast<long double>(base), static_cast<long double>(exponent));
      // Half a unit in the last place, plus a margin for the error of `expected`. Below 1e-280,
      // where the parts with the lower bits are lost, powers count as 0 in subtractions.
      const long double last_bit = std::nextafter(power, 2.0) - power;
      const long double bound = std::max(0.5005L * last_bit, 1e-280L);
      EXPECT_LE(std::fabs(power - expected), bound) << base << "^" << exponent;
    }
  }
}

}  // namespace
}  // namespace phub::optimizer
