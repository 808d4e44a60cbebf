// Makes one call of this program fail: the n-th call of one kind, or that one and all later ones.
// Only calls from the program's own code are affected, not those of shared libraries such as gRPC,
// because the linker replaces them (--wrap). A program uses it with phub_wrap_failing_calls() of
// tests/support/CMakeLists.txt. Any thread.
#pragma once

#include <cstddef>
#include <string_view>

namespace phub::test {

enum class CallKind { kEventfd, kEpoll, kEpollControl, kSocket, kMmap, kThread, kOpen, kSpace };
inline constexpr CallKind kCallKinds[] = {
    CallKind::kEventfd, CallKind::kEpoll,  CallKind::kEpollControl, CallKind::kSocket,
    CallKind::kMmap,    CallKind::kThread, CallKind::kOpen,         CallKind::kSpace};
std::string_view ToString(CallKind kind);

class FailingCalls {
 public:
  enum class Then { kWorks, kFails };  // the calls after the n-th
  // number: 1 is the first call from now on.
  FailingCalls(CallKind kind, std::size_t number, Then then);
  ~FailingCalls();  // all calls work again
  FailingCalls(const FailingCalls&) = delete;
  FailingCalls& operator=(const FailingCalls&) = delete;

  static std::size_t failed_count();  // by the present or the last object
};

}  // namespace phub::test
