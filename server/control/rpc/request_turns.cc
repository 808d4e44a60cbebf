#include "server/control/rpc/request_turns.h"

#include <fmt/format.h>

#include <utility>

#include "common/base/cpu_topology.h"
#include "common/base/shortage.h"
#include "server/tenant/ledger.h"

namespace phub::server {

RequestTurns::RequestTurns(std::uint64_t tenant_bytes_max)
    : tenant_bytes_max_(tenant_bytes_max), started_(StartThread(thread_, "requests", [this] {
        NameThisThread("requests");
        Loop();
      })) {}

RequestTurns::~RequestTurns() { Stop(); }

absl::StatusOr<RequestTurns::Token> RequestTurns::Charge(const std::string& tenant,
                                                         std::uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  const auto known = state_->charged.find(tenant);
  const std::uint64_t charged = known == state_->charged.end() ? 0 : known->second;
  if (charged + bytes > tenant_bytes_max_) {
    return absl::ResourceExhaustedError(fmt::format(
        "connections, calls in progress and unread answers of tenant {} use {}; {} more would "
        "exceed request_memory ({}): close some of them, or raise request_memory",
        tenant, FormatBytes(charged), FormatBytes(bytes), FormatBytes(tenant_bytes_max_)));
  }
  if (bytes > 0) state_->charged[tenant] = charged + bytes;
  return Token(nullptr, [state = state_, tenant, bytes](void*) {
    const std::lock_guard returning(state->mutex);
    const auto found = state->charged.find(tenant);
    if (found == state->charged.end()) return;
    found->second -= bytes;
    if (found->second == 0) state->charged.erase(found);
  });
}

void RequestTurns::Post(const std::string& tenant, std::function<void(Token)> work) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stopping) return;
    state_->waiting[tenant].push_back(std::move(work));
  }
  state_->changed.notify_one();
}

void RequestTurns::Stop() {
  std::map<std::string, std::deque<Work>> dropped;  // freed without the mutex: it has tokens
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    dropped.swap(state_->waiting);
  }
  state_->changed.notify_one();
  if (thread_.joinable()) thread_.join();
}

std::map<std::string, std::deque<RequestTurns::Work>>::iterator RequestTurns::State::Next() {
  if (waiting.empty() || at_work.size() >= kAtOnce) return waiting.end();
  auto next = waiting.upper_bound(last);
  for (std::size_t i = 0; i < waiting.size(); ++i, ++next) {
    if (next == waiting.end()) next = waiting.begin();
    if (!at_work.contains(next->first)) return next;
  }
  return waiting.end();
}

void RequestTurns::Loop() {
  State& state = *state_;
  for (;;) {
    Work work;
    Token turn;
    {
      std::unique_lock lock(state.mutex);
      state.changed.wait(lock,
                         [&] { return state.stopping || state.Next() != state.waiting.end(); });
      if (state.stopping) return;
      const auto next = state.Next();
      state.last = next->first;
      state.at_work.insert(state.last);
      turn = Token(nullptr, [state = state_, tenant = state.last](void*) {
        {
          const std::lock_guard ending(state->mutex);
          state->at_work.erase(tenant);
        }
        state->changed.notify_one();
      });
      work = std::move(next->second.front());
      next->second.pop_front();
      if (next->second.empty()) state.waiting.erase(next);
    }
    work(std::move(turn));
  }
}

}  // namespace phub::server
