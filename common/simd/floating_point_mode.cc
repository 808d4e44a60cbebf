// The C library's default environment is the mode that we promise: round to nearest even, traps
// masked, and (glibc since 2.22, on x86 and aarch64 alike) no flush to zero in MXCSR or FPCR. A
// libc that leaves the flush bits alone would change sums silently, so the result is checked.
#include <cfenv>
#include <limits>

#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::simd {

void SetFloatingPointMode() {
  const int result = std::fesetenv(FE_DFL_ENV);
  PHUB_CHECK(result == 0, "fesetenv failed result={}", result);

  // Volatile: computed now, by this thread, not by the compiler.
  volatile float smallest_normal = std::numeric_limits<float>::min();
  volatile float half = 0.5f;
  volatile float denormal = smallest_normal * half;  // 0 if results are flushed
  volatile float restored = denormal + denormal;     // 0 if inputs are
  PHUB_CHECK(restored == smallest_normal, "denormals are flushed to zero");
  // 1 + 2^-24 lies halfway between two floats, and 1 is the even one; so does 1 + 3 * 2^-24, whose
  // even neighbour is above.
  volatile float one = 1.0f;
  volatile float half_step = 0x1p-24f;
  volatile float step_and_half = 0x3p-24f;
  volatile float tie_down = one + half_step;
  volatile float tie_up = one + step_and_half;
  PHUB_CHECK(tie_down == 1.0f && tie_up == 1.0f + 0x1p-22f, "rounding is not to nearest even");
}

}  // namespace phub::simd
