#include "server/control/ports/background_thread.h"

#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"

namespace phub::server {

BackgroundThread::BackgroundThread(ControlThread& control)
    : control_(control), started_(StartThread(thread_, "background", [this] {
        NameThisThread("background");
        Loop();
      })) {}

BackgroundThread::~BackgroundThread() { Stop(); }

void BackgroundThread::Run(const std::string& tenant, std::function<void()> work,
                           std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    waiting_[tenant].push_back({std::move(work), std::move(then)});
  }
  posted_.notify_one();
}

void BackgroundThread::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

BackgroundThread::Piece BackgroundThread::TakeNext() {
  auto next = waiting_.upper_bound(last_tenant_);
  if (next == waiting_.end()) next = waiting_.begin();
  last_tenant_ = next->first;
  Piece piece = std::move(next->second.front());
  next->second.pop_front();
  if (next->second.empty()) waiting_.erase(next);
  return piece;
}

void BackgroundThread::Loop() {
  for (;;) {
    Piece piece;
    {
      std::unique_lock lock(mutex_);
      posted_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      piece = TakeNext();
    }
    piece.work();
    control_.Run({TurnKind::kBackground, "background"}, [&](Control&) { piece.then(); });
  }
}

}  // namespace phub::server
