#include "server/tenant/state_thread.h"

#include <utility>

namespace phub::server {

StateThread::StateThread() : thread_([this] { Loop(); }) {}

StateThread::~StateThread() { Stop(); }

bool StateThread::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || waiting_.size() >= kWaitingMax) return false;
    waiting_.push_back(std::move(work));
  }
  posted_.notify_one();
  return true;
}

void StateThread::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void StateThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    posted_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

}  // namespace phub::server
