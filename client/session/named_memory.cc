#include "client/session/named_memory.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace phub::client {
namespace {

// The handler reads these without a lock: it may interrupt any code.
struct Named {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> bytes{0};  // 0: free
  std::array<char, 120> name{};       // written while bytes is 0
};

constexpr std::size_t kBlock = 256;
constexpr std::size_t kBlocksMax = 256;

std::array<std::atomic<Named*>, kBlocksMax> blocks;  // each has kBlock entries; never freed
struct sigaction previous;

template <typename Visit>
void ForEach(Visit visit) {
  for (const std::atomic<Named*>& each : blocks) {
    Named* const block = each.load(std::memory_order_acquire);
    if (block == nullptr) return;
    for (std::size_t i = 0; i < kBlock; ++i)
      if (!visit(block[i])) return;
  }
}

const Named* Find(std::uintptr_t address) {
  const Named* found = nullptr;
  ForEach([&](const Named& each) {
    const std::uintptr_t begin = each.begin.load(std::memory_order_relaxed);
    if (address - begin < each.bytes.load(std::memory_order_acquire)) found = &each;
    return found == nullptr;
  });
  return found;
}

void OnSegmentationFault(int, siginfo_t* info, void*) {
  // The instruction runs again after this handler, and then the previous one gets the signal.
  sigaction(SIGSEGV, &previous, nullptr);
  if (info->si_code != SEGV_ACCERR) return;
  const Named* const named = Find(reinterpret_cast<std::uintptr_t>(info->si_addr));
  if (named == nullptr) return;
  std::array<char, 400> line;
  const auto end = fmt::format_to_n(line.data(), line.size(),
                                    "phub: this process wrote to {}, which is in memory that it "
                                    "shares with other processes and can only read\n",
                                    named->name.data());
  const std::size_t size = std::min(end.size, line.size());
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line.data(), size);
}

void Install() {
  struct sigaction action = {};
  action.sa_sigaction = &OnSegmentationFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

Named* FreeEntry() {
  Named* found = nullptr;
  ForEach([&](Named& each) {
    if (each.bytes.load(std::memory_order_relaxed) == 0) found = &each;
    return found == nullptr;
  });
  if (found != nullptr) return found;
  for (std::atomic<Named*>& each : blocks) {
    if (each.load(std::memory_order_relaxed) != nullptr) continue;
    auto* const block = new Named[kBlock];
    each.store(block, std::memory_order_release);
    return block;
  }
  return nullptr;
}

}  // namespace

bool NameMemory(const void* data, std::size_t bytes, std::string_view name) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  ForEach([&](Named& each) {
    if (each.begin.load(std::memory_order_relaxed) - begin < bytes)
      each.bytes.store(0, std::memory_order_release);
    return true;
  });
  if (name.empty() || bytes == 0) return true;
  Named* const free = FreeEntry();
  if (free == nullptr) return false;
  const std::size_t length = name.copy(free->name.data(), free->name.size() - 1);
  free->name[length] = '\0';
  free->begin.store(begin, std::memory_order_relaxed);
  free->bytes.store(bytes, std::memory_order_release);
  static const bool installed = (Install(), true);
  return installed;
}

}  // namespace phub::client
