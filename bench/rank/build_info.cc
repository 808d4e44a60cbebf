#include "bench/rank/build_info.h"

#include <cstdio>

namespace phub::bench {

int PrintBuildInfo() {
#ifdef __OPTIMIZE__
  const char* optimized = "true";
#else
  const char* optimized = "false";
#endif
  std::printf("{\"build_type\":\"%s\",\"optimized\":%s,\"sanitizer\":\"%s\",\"compiler\":\"%s\"}\n",
              PHUB_BENCH_BUILD_TYPE, optimized, PHUB_BENCH_SANITIZER, PHUB_BENCH_COMPILER);
  return 0;
}

}  // namespace phub::bench
