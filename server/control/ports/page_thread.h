// Allocates and frees pages on a separate thread. Large requests are split into pieces that take
// turns, so that a large job does not delay small ones. Any thread may call.
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
  // `changed` is called after each flag that was set; it must outlive the thread. Requests that are
  // still waiting when the thread ends get no notice.
  explicit PageThread(std::function<void()> changed) : changed_(std::move(changed)) {}

  // An error if the process lacks threads. Check it before the first call.
  const absl::Status& started() const { return thread_.started(); }

  PagesFlag Take(std::vector<UnbackedMemory> memory) override;
  DoneFlag Free(std::shared_ptr<const void> memory) override;

 private:
  struct Taking;
  void TakePiece(const std::shared_ptr<Taking>& taking);

  const std::function<void()> changed_;
  WorkThread thread_{"page-taker"};
};

}  // namespace phub::server
