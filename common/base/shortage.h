// Errors for a lack of descriptors, threads or memory. They name the limit, its value and how to
// raise it. A shortage is never a broken invariant, so nothing here aborts or throws.
//
// Any thread. These functions read files when they describe an error.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"

namespace phub {

// Whether `error`, from a call that makes or watches descriptors, is a shortage.
bool IsDescriptorShortage(int error);
// The description of `error` from a call that makes or watches descriptors, such as socket():
// "Too many open files: this process may have 512 (RLIMIT_NOFILE); raise it with ...".
// For errors that are no shortage, the system's description.
std::string DescriptorErrorText(int error);
// The same for mmap and its relatives, and for starting a thread.
std::string MemoryErrorText(int error);
std::string ThreadErrorText(int error);

// kResourceExhausted: "cannot create an eventfd: Too many open files: ..."
absl::Status DescriptorShortage(std::string_view action, int error);
absl::Status MemoryShortage(std::string_view action, int error);

// A peer sent descriptors that did not arrive, so this process has no room for them.
absl::Status PassedDescriptorShortage(std::string_view action);

absl::StatusOr<Descriptor> MakeEpoll();

// Starts a thread that runs `body`. `name` is for the error; `thread` must not be running.
[[nodiscard]] absl::Status StartThread(std::thread& thread, std::string_view name,
                                       std::function<void()> body);

// OK if that many descriptors and threads can be created now; they are freed again. For libraries
// that abort or hang without them, such as gRPC.
absl::Status CheckRoom(std::size_t descriptor_count, std::size_t thread_count,
                       std::string_view purpose);

}  // namespace phub
