#include "tests/support/failing_calls.h"

#include <sys/epoll.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <thread>

namespace phub::test {
namespace {

struct Plan {
  std::atomic<int> kind{-1};
  std::atomic<std::size_t> left{0};  // calls until the one that fails; 0: it has failed
  std::atomic<bool> later_too{false};
  std::atomic<std::size_t> failed{0};
} plan;

bool Fails(CallKind kind) {
  if (plan.kind.load() != static_cast<int>(kind)) return false;
  std::size_t left = plan.left.load();
  while (left > 0 && !plan.left.compare_exchange_weak(left, left - 1)) {
  }
  const bool fails = left == 1 || (left == 0 && plan.later_too.load());
  if (fails) plan.failed.fetch_add(1);
  return fails;
}

int Failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

std::string_view ToString(CallKind kind) {
  switch (kind) {
    case CallKind::kEventfd: return "eventfd";
    case CallKind::kEpoll: return "epoll_create1";
    case CallKind::kEpollControl: return "epoll_ctl";
    case CallKind::kSocket: return "socket";
    case CallKind::kMmap: return "mmap";
    case CallKind::kThread: return "thread";
    case CallKind::kOpen: return "openat";
    case CallKind::kSpace: return "pwrite";
  }
  return "";
}

FailingCalls::FailingCalls(CallKind kind, std::size_t number, Then then) {
  plan.left = number;
  plan.later_too = then == Then::kFails;
  plan.failed = 0;
  plan.kind = static_cast<int>(kind);
}

FailingCalls::~FailingCalls() { plan.kind = -1; }

std::size_t FailingCalls::failed_count() { return plan.failed.load(); }

}  // namespace phub::test

using phub::test::CallKind;
using phub::test::Failed;
using phub::test::Fails;

// What the linker calls instead of each function; __real_ is the function itself.
extern "C" {
int __real_eventfd(unsigned count, int flags);
int __real_epoll_create1(int flags);
int __real_epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event);
int __real_socket(int domain, int type, int protocol);
void* __real_mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                  off_t offset);
int __real_openat(int folder, const char* name, int flags, unsigned mode);
ssize_t __real_pwrite(int file, const void* data, std::size_t bytes, off_t offset);

int __wrap_eventfd(unsigned count, int flags) {
  return Fails(CallKind::kEventfd) ? Failed(EMFILE) : __real_eventfd(count, flags);
}
int __wrap_epoll_create1(int flags) {
  return Fails(CallKind::kEpoll) ? Failed(EMFILE) : __real_epoll_create1(flags);
}
int __wrap_epoll_ctl(int epoll, int operation, int descriptor, epoll_event* event) {
  if (operation == EPOLL_CTL_ADD && Fails(CallKind::kEpollControl)) return Failed(ENOSPC);
  return __real_epoll_ctl(epoll, operation, descriptor, event);
}
int __wrap_socket(int domain, int type, int protocol) {
  return Fails(CallKind::kSocket) ? Failed(EMFILE) : __real_socket(domain, type, protocol);
}
void* __wrap_mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                  off_t offset) {
  if (!Fails(CallKind::kMmap)) return __real_mmap(address, bytes, protection, flags, file, offset);
  errno = ENOMEM;
  return reinterpret_cast<void*>(-1);
}
int __wrap_openat(int folder, const char* name, int flags, unsigned mode) {
  return Fails(CallKind::kOpen) ? Failed(EMFILE) : __real_openat(folder, name, flags, mode);
}
ssize_t __wrap_pwrite(int file, const void* data, std::size_t bytes, off_t offset) {
  return Fails(CallKind::kSpace) ? Failed(ENOSPC) : __real_pwrite(file, data, bytes, offset);
}

// std::thread's constructor, whose call of pthread_create is in libstdc++.
using ThreadState = std::unique_ptr<std::thread::_State>;
void __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* self, ThreadState state, void (*depend)());
void __wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
    std::thread* self, ThreadState state, void (*depend)()) {
  if (Fails(CallKind::kThread)) {
    throw std::system_error(EAGAIN, std::generic_category(), "std::thread");
  }
  __real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE(
      self, std::move(state), depend);
}
}
