#include "server/front/confinement.h"

#include <seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "server/front/front_limits.h"

namespace phub::server {
namespace {

// Sanitizers map terabytes, start processes and read files.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Core loops have priority over strangers.
constexpr int kNice = 5;
// The last bound, far beyond what phubd tolerates (kFrontBytesMax): malloc fails.
constexpr rlim_t kDataBytesMax = 2ul << 30;

constexpr int kCalls[] = {
    SCMP_SYS(accept4),        SCMP_SYS(brk),
    SCMP_SYS(clock_gettime),  SCMP_SYS(clock_nanosleep),
    SCMP_SYS(close),          SCMP_SYS(epoll_ctl),
    SCMP_SYS(epoll_pwait),    SCMP_SYS(epoll_wait),
    SCMP_SYS(epoll_create1),  SCMP_SYS(exit),
    SCMP_SYS(exit_group),     SCMP_SYS(fstat),
    SCMP_SYS(futex),          SCMP_SYS(getpid),
    SCMP_SYS(getrandom),      SCMP_SYS(getrlimit),
    SCMP_SYS(getsockopt),     SCMP_SYS(gettid),
    SCMP_SYS(gettimeofday),   SCMP_SYS(ioctl),
    SCMP_SYS(madvise),        SCMP_SYS(mmap),
    SCMP_SYS(mprotect),       SCMP_SYS(mremap),
    SCMP_SYS(munmap),         SCMP_SYS(nanosleep),
    SCMP_SYS(newfstatat),     SCMP_SYS(poll),
    SCMP_SYS(pread64),        SCMP_SYS(read),
    SCMP_SYS(readv),          SCMP_SYS(recvfrom),
    SCMP_SYS(recvmsg),        SCMP_SYS(rt_sigaction),
    SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn),
    SCMP_SYS(sched_yield),    SCMP_SYS(sendmsg),
    SCMP_SYS(sendto),         SCMP_SYS(setsockopt),
    SCMP_SYS(shutdown),       SCMP_SYS(tgkill),
    SCMP_SYS(write),          SCMP_SYS(writev),
};

bool FilterCalls() {
  // A call that is not listed fails with EPERM, so an oversight costs one connection at most.
  const scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
  if (filter == nullptr) return false;
  bool made = true;
  for (const int call : kCalls) {
    made = made && seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0) == 0;
  }
  made = made && seccomp_load(filter) == 0;
  seccomp_release(filter);
  return made;
}

void Limit(decltype(RLIMIT_CORE) resource, rlim_t value) {
  const rlimit limit{value, value};
  static_cast<void>(setrlimit(resource, &limit));
}

}  // namespace

bool Confine(int first_unused) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_NAME, "phubd-front");
  // No core dump has a key or a token, and no process of the same user can attach.
  prctl(PR_SET_DUMPABLE, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  close_range(static_cast<unsigned>(first_unused), ~0u, 0);
  static_cast<void>(nice(kNice));
  Limit(RLIMIT_CORE, 0);
  Limit(RLIMIT_NPROC, 0);
  if (kSanitized) return false;
  Limit(RLIMIT_DATA, kDataBytesMax);
  return FilterCalls();
}

}  // namespace phub::server
