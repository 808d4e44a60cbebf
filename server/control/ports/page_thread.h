// Takes and gives back pages on a thread of its own. Pieces of what waits take turns, so that a
// large job does not keep small ones waiting. Any thread may call.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/work_thread.h"
#include "server/control/jobs/prefaulter.h"

namespace phub::server {

class PageThread final : public Prefaulter {
 public:
  // `changed`: called after each flag that was set. Outlives the thread, whose end tells nobody of
  // what still waits.
  explicit PageThread(std::function<void()> changed) : changed_(std::move(changed)) {}

  PagesFlag Take(std::vector<UnbackedMemory> memory) override;
  DoneFlag Free(std::shared_ptr<const void> memory) override;

 private:
  struct Taking;
  void TakePiece(const std::shared_ptr<Taking>& taking);

  const std::function<void()> changed_;
  WorkThread thread_{"page-taker"};
};

}  // namespace phub::server
