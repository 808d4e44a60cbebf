// CHECK asserts an internal invariant in every build: a crashed daemon is better than a wrong sum.
// Never CHECK what a peer sent: answer bad input with an error, a counter and a closed connection.
// DCHECK is for checks per element on hot paths; it is active only in builds without NDEBUG.
//   PHUB_CHECK(slot.value < slot_count, "slot={} slots={}", slot.value, slot_count);
#pragma once

#include <string>

#include <fmt/core.h>

namespace phub {

// Prints "CHECK failed: <condition> <context> at file:line" to standard error and aborts.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line,
                              const std::string& context);

}  // namespace phub

#define PHUB_CHECK(condition, ...)                                                          \
  do {                                                                                      \
    if (!(condition)) [[unlikely]]                                                          \
      ::phub::CheckFailed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__));   \
  } while (false)

#ifdef NDEBUG
#define PHUB_DCHECK(condition, ...) \
  do {                              \
    (void)sizeof(condition);        \
  } while (false)
#else
#define PHUB_DCHECK(condition, ...) PHUB_CHECK(condition, __VA_ARGS__)
#endif
