#include "common/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace phub {

void CheckFailed(const char* condition, const char* file, int line, const std::string& context) {
  std::fprintf(stderr, "CHECK failed: %s%s%s at %s:%d\n", condition, context.empty() ? "" : " ",
               context.c_str(), file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace phub
