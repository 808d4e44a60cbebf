#include "bench/rank/start_line.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bench/rank/arguments.h"

namespace phub::bench {

using Counter = std::atomic<std::uint64_t>;
static_assert(Counter::is_always_lock_free, "processes cannot share an atomic with a lock");

StartLine::StartLine(const std::string& path, std::uint32_t world) : world_(world) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  // A new file is all zeros, so the counter starts at 0. ftruncate() does not change an existing
  // file.
  if (file >= 0 && ftruncate(file, sizeof(Counter)) == 0) {
    memory = mmap(nullptr, sizeof(Counter), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  if (memory == MAP_FAILED) Fail("cannot map the start line " + path + ": " + std::strerror(errno));
  close(file);
  arrived_ = static_cast<Counter*>(memory);
}

StartLine::~StartLine() { munmap(arrived_, sizeof(Counter)); }

void StartLine::Arrive() {
  ++arrivals_;
  arrived_->fetch_add(1);
}

bool StartLine::all_there() const { return arrived_->load() >= arrivals_ * world_; }

}  // namespace phub::bench
