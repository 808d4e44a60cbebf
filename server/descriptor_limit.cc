#include "server/descriptor_limit.h"

#include <sys/resource.h>

#include "common/base/log.h"

namespace phub::server {

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) LogWarning("event=descriptor_limit_not_raised");
}

}  // namespace phub::server
