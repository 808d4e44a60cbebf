// phub/handle.h
#include "phub/handle.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "client/session/fork.h"
#include "client/session/key_impl.h"
#include "client/session/pool_rounds.h"

namespace phub {

// Shorter timeouts are often those of loops that poll, so they make no call to the daemon.
constexpr std::chrono::seconds kExplainedTimeout{1};

Handle::Handle()
    : refused_(StatusCode::kFailedPrecondition, "this handle does not belong to a push") {}
Handle::Handle(Status refused) : refused_(std::move(refused)) {}
Handle::Handle(std::shared_ptr<client::KeyImpl> key, std::uint64_t ticket)
    : key_(std::move(key)), ticket_(ticket) {}
Handle::~Handle() = default;
Handle::Handle(Handle&& other) noexcept = default;
Handle& Handle::operator=(Handle&& other) noexcept = default;
Handle::Handle(const Handle& other) = default;
Handle& Handle::operator=(const Handle& other) = default;

Status Handle::Wait() const {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (key_ == nullptr) return refused_;
  return client::WaitForAll(pool_rounds_.get(), *key_, ticket_, std::nullopt);
}

Status Handle::Wait(std::chrono::nanoseconds timeout) const {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (key_ == nullptr) return refused_;
  const auto now = std::chrono::steady_clock::now();
  // Such a deadline would overflow, so wait without one.
  if (timeout > std::chrono::steady_clock::time_point::max() - now) return Wait();
  Status status = client::WaitForAll(pool_rounds_.get(), *key_, ticket_, now + timeout);
  const bool explains =
      status.code() == StatusCode::kDeadlineExceeded && timeout >= kExplainedTimeout;
  return explains ? Explain() : status;
}

Status Handle::Explain() const {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (key_ == nullptr) return refused_;
  const client::KeyImpl* late = key_.get();
  if (pool_rounds_ != nullptr)
    for (const client::PoolRounds::Round& round : pool_rounds_->earlier)
      if (!round.key->Test(round.ticket)) {
        late = round.key.get();
        break;
      }
  const std::string why = Test() ? "" : late->job->ExplainWait(late->definition.name);
  Status status =
      client::WaitForAll(pool_rounds_.get(), *key_, ticket_, std::chrono::steady_clock::now());
  if (status.code() != StatusCode::kDeadlineExceeded || why.empty()) return status;
  return Status(StatusCode::kDeadlineExceeded, fmt::format("{}; {}", status.message(), why));
}

bool Handle::Test() const {
  if (key_ == nullptr || client::InForkedChild()) return true;
  if (!key_->Test(ticket_)) return false;
  if (pool_rounds_ == nullptr) return true;
  return std::ranges::all_of(pool_rounds_->earlier,
                             [](const auto& round) { return round.key->Test(round.ticket); });
}

Status Handle::Cancel() const {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (pool_rounds_ != nullptr)
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: operations of a pool cannot be cancelled, since all ranks start "
                              "the same ones",
                              key_->Place()));
  return key_ == nullptr ? refused_ : key_->Cancel(ticket_);
}

}  // namespace phub
