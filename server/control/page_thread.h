// Takes and gives back pages on a thread of its own. Pieces of what waits take turns, so that a
// large job does not keep small ones waiting.
//
// Any thread may call; nothing here takes another lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/control/page_taker.h"

namespace phub::server {

class PageThread final : public PageTaker {
 public:
  // `changed`: called after each flag that was set. Outlives the thread.
  explicit PageThread(std::function<void()> changed);
  ~PageThread() override;  // nobody is told of what still waits; nothing is kept

  PagesFlag Take(std::vector<UnbackedMemory> memory) override;
  DoneFlag Free(std::shared_ptr<const void> memory) override;

 private:
  struct Work {
    std::vector<UnbackedMemory> memory;
    std::size_t index = 0;   // in `memory`
    std::size_t offset = 0;  // in memory[index]
    std::shared_ptr<std::atomic<PagesState>> taken;
    std::shared_ptr<const void> unwanted;
    std::shared_ptr<std::atomic<bool>> freed;
  };

  void Add(Work work);
  void Attend();
  static bool DoPiece(Work& work);

  const std::function<void()> changed_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Work> work_;  // under mutex_
  bool stopping_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace phub::server
