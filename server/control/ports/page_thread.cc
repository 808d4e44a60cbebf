#include "server/control/ports/page_thread.h"

#include <algorithm>
#include <utility>

#include "common/base/mapped_memory.h"

namespace phub::server {
namespace {

// About 20 ms of work; a multiple of the size of huge pages.
constexpr std::size_t kPieceBytes = std::size_t{64} << 20;

}  // namespace

struct PageThread::Taking {
  std::vector<UnbackedMemory> memory;
  std::size_t index = 0;   // in `memory`
  std::size_t offset = 0;  // in memory[index]
  std::atomic<PrefaultState> state{PrefaultState::kWaiting};
};

PagesFlag PageThread::Take(std::vector<UnbackedMemory> memory) {
  auto taking = std::make_shared<Taking>();
  taking->memory = std::move(memory);
  thread_.Post([this, taking] { TakePiece(taking); });
  return {taking, &taking->state};
}

DoneFlag PageThread::Free(std::shared_ptr<const void> memory) {
  auto freed = std::make_shared<std::atomic<bool>>(false);
  thread_.Post([this, freed, memory = std::move(memory)]() mutable {
    memory.reset();
    freed->store(true);
    changed_();
  });
  return freed;
}

void PageThread::TakePiece(const std::shared_ptr<Taking>& taking) {
  PrefaultState state = PrefaultState::kTaken;
  if (taking->index < taking->memory.size()) {
    const UnbackedMemory& memory = taking->memory[taking->index];
    const std::size_t piece = std::min(kPieceBytes, memory.bytes - taking->offset);
    const std::shared_ptr<const void> owner = memory.owner.lock();  // null: the job has ended
    const bool done = owner == nullptr || TakePages(memory.data + taking->offset, piece);
    taking->offset += piece;
    if (taking->offset == memory.bytes) {
      ++taking->index;
      taking->offset = 0;
    }
    if (!done) {
      state = PrefaultState::kRefused;
    } else if (taking->index < taking->memory.size()) {
      thread_.Post([this, taking] { TakePiece(taking); });
      return;
    }
  }
  taking->memory.clear();
  taking->state.store(state);
  changed_();
}

}  // namespace phub::server
