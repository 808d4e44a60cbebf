#include "common/optimizer/power.h"

namespace phub::optimizer {
namespace {

// A value in two doubles, low far below high's last bit: about 106 bits.
struct DoubleDouble {
  double high;
  double low;
};

// high + low == a, in two halves of at most 26 bits each, whose products are exact (Veltkamp).
DoubleDouble Split(double a) {
  const double scaled = 0x1.0000002p27 * a;  // 2^27 + 1
  const double high = scaled - (scaled - a);
  return {high, a - high};
}

// Dekker's product: high is the rounded a.high * b.high, low what that rounding lost and the cross
// terms. Plain multiplications and additions only, so that no library or machine has a say.
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
