#include "server/control/page_thread.h"

#include <algorithm>
#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/mapped_memory.h"

namespace phub::server {
namespace {

// Some 20 ms of work: whole huge pages.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

}  // namespace

PageThread::PageThread(std::function<void()> changed)
    : changed_(std::move(changed)), thread_([this] { Attend(); }) {}

PageThread::~PageThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  added_.notify_one();
  thread_.join();
}

PagesFlag PageThread::Take(std::vector<UnbackedMemory> memory) {
  auto taken = std::make_shared<std::atomic<PagesState>>(PagesState::kWaiting);
  Work work;
  work.memory = std::move(memory);
  work.taken = taken;
  Add(std::move(work));
  return taken;
}

DoneFlag PageThread::Free(std::shared_ptr<const void> memory) {
  auto freed = std::make_shared<std::atomic<bool>>(false);
  Work work;
  work.unwanted = std::move(memory);
  work.freed = freed;
  Add(std::move(work));
  return freed;
}

void PageThread::Add(Work work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  added_.notify_one();
}

// True once all of it is done.
bool PageThread::DoPiece(Work& work) {
  if (work.freed != nullptr) {
    work.unwanted.reset();
    work.freed->store(true);
    return true;
  }
  if (work.index < work.memory.size()) {
    UnbackedMemory& memory = work.memory[work.index];
    const std::size_t piece = std::min(kPieceBytes, memory.bytes - work.offset);
    const std::shared_ptr<const void> owner = memory.owner.lock();  // null: the job has ended
    if (owner != nullptr && !TakePages(memory.data + work.offset, piece)) {
      work.taken->store(PagesState::kRefused);
      return true;
    }
    work.offset += piece;
    if (work.offset < memory.bytes) return false;
    memory.owner.reset();
    ++work.index;
    work.offset = 0;
    if (work.index < work.memory.size()) return false;
  }
  work.taken->store(PagesState::kTaken);
  return true;
}

void PageThread::Attend() {
  NameThisThread("page-taker");
  for (;;) {
    Work work;
    {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [this] { return stopping_ || !work_.empty(); });
      if (stopping_) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    if (DoPiece(work)) {
      changed_();
      continue;
    }
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
}

}  // namespace phub::server
