#include "bench/rank/traffic.h"

#include <dlfcn.h>

#include <atomic>

namespace phub::bench {
namespace {

std::atomic<std::uint64_t> arithmetic_bytes{0};
std::atomic<std::uint64_t> update_bytes{0};

}  // namespace

bool ReadTraffic(Traffic& traffic) {
  auto* const read = reinterpret_cast<ReadTrafficFunction>(dlsym(RTLD_DEFAULT, kReadTrafficName));
  if (read == nullptr) return false;
  read(&traffic);
  traffic.arithmetic_bytes = arithmetic_bytes.load(std::memory_order_relaxed);
  traffic.update_bytes = update_bytes.load(std::memory_order_relaxed);
  return true;
}

void CountArithmetic(std::uint64_t bytes) {
  arithmetic_bytes.fetch_add(bytes, std::memory_order_relaxed);
}
void CountUpdate(std::uint64_t bytes) { update_bytes.fetch_add(bytes, std::memory_order_relaxed); }

}  // namespace phub::bench
