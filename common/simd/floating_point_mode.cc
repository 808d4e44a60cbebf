// The C library's default environment is the required mode: round to nearest even, traps masked,
// and no flush to zero in MXCSR or FPCR (glibc since 2.22, on x86 and aarch64). A libc that does
// not reset the flush bits would silently change sums; the code below therefore checks the result.
#include <cfenv>
#include <limits>

#include "common/base/check.h"
#include "common/simd/kernels.h"

namespace phub::simd {

void SetFloatingPointMode() {
  const int result = std::fesetenv(FE_DFL_ENV);
  PHUB_CHECK(result == 0, "fesetenv failed result={}", result);

  // Volatile: computed at run time by this thread, not by the compiler.
  volatile float smallest_normal = std::numeric_limits<float>::min();
  volatile float half = 0.5f;
  volatile float denormal = smallest_normal * half;  // 0 if results are flushed
  volatile float restored = denormal + denormal;     // 0 if inputs are flushed
  PHUB_CHECK(restored == smallest_normal, "the processor flushes denormals to zero");
  // 1 + 2^-24 and 1 + 3 * 2^-24 are each halfway between two floats. The even neighbour is below
  // the first (1) and above the second.
  volatile float one = 1.0f;
  volatile float half_step = 0x1p-24f;
  volatile float step_and_half = 0x3p-24f;
  volatile float tie_down = one + half_step;
  volatile float tie_up = one + step_and_half;
  PHUB_CHECK(tie_down == 1.0f && tie_up == 1.0f + 0x1p-22f,
             "the processor does not round to nearest even");
}

}  // namespace phub::simd
