#include "common/base/work_thread.h"

#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"

namespace phub {

WorkThread::WorkThread(std::string name, std::size_t waiting_max)
    : waiting_max_(waiting_max), started_(StartThread(thread_, name, [this, name] {
        NameThisThread(name);
        Loop();
      })) {}

WorkThread::~WorkThread() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    dropped.swap(waiting_);
  }
  dropped.clear();  // without the lock: the destructors of captured objects may take other locks
  Finish();
}

bool WorkThread::Post(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (!started_.ok() || ending_ || waiting_.size() >= waiting_max_) return false;
    waiting_.push_back(std::move(work));
  }
  posted_.notify_one();
  return true;
}

void WorkThread::RunEvery(DurationNs period, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    periodic_ = std::move(work);
    period_ = period;
    next_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(period);
  }
  posted_.notify_one();
}

void WorkThread::Finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  posted_.notify_one();
  if (thread_.joinable()) thread_.join();
}

// False: it is time for the periodic function.
bool WorkThread::WaitForWork(std::unique_lock<std::mutex>& lock) {
  const auto has_work = [&] { return ending_ || !waiting_.empty(); };
  if (period_ == 0) posted_.wait(lock, [&] { return has_work() || period_ > 0; });
  if (period_ == 0 || ending_) return true;
  // Work that never ends must not prevent the periodic function, so its time comes first.
  const auto now = std::chrono::steady_clock::now();
  if (now < next_ && posted_.wait_until(lock, next_, has_work)) return true;
  next_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(period_);
  return false;
}

void WorkThread::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (!WaitForWork(lock)) {
      lock.unlock();
      periodic_();
      lock.lock();
      continue;
    }
    if (waiting_.empty()) return;
    std::function<void()> work = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    work();
    work = nullptr;  // destroy captured objects without the lock
    lock.lock();
  }
}

}  // namespace phub
