#include "common/optimizer/power.h"

namespace phub::optimizer {
namespace {

// A value as the sum of two doubles, where low is below the last bit of high: about 106 bits.
struct DoubleDouble {
  double high;
  double low;
};

// Splits a into high + low with at most 26 bits each; products of such halves are exact (Veltkamp).
DoubleDouble Split(double a) {
  const double scaled = 0x1.0000002p27 * a;  // 2^27 + 1
  const double high = scaled - (scaled - a);
  return {high, a - high};
}

// Dekker's product: high is the rounded a.high * b.high; low is its rounding error plus the cross
// terms. Only plain multiplications and additions: the result is the same on every machine.
DoubleDouble Multiply(DoubleDouble a, DoubleDouble b) {
  const double product = a.high * b.high;
  const DoubleDouble x = Split(a.high);
  const DoubleDouble y = Split(b.high);
  const double lost =
      ((x.high * y.high - product) + x.high * y.low + x.low * y.high) + x.low * y.low;
  const double low = lost + (a.high * b.low + a.low * b.high);
  const double high = product + low;
  return {high, low - (high - product)};
}

}  // namespace

double PowerOf(double base, std::uint64_t exponent) {
  DoubleDouble result{1.0, 0.0};
  DoubleDouble square{base, 0.0};
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Multiply(result, square);
    square = Multiply(square, square);
  }
  return result.high;
}

}  // namespace phub::optimizer
