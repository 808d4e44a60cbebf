#include "server/control/ranks/waiting_joins.h"

#include <algorithm>
#include <utility>

#include "server/control/jobs/job.h"

namespace phub::server {
namespace {

constexpr std::size_t kWaitingMax = 4096;
constexpr std::size_t kWaitingOfTenantMax = 1024;

}  // namespace

bool WaitingJoins::Add(Waiting join, std::uint64_t bytes_left) {
  const auto of_tenant = std::ranges::count_if(
      joins_, [&](const Waiting& each) { return each.request.tenant() == join.request.tenant(); });
  if (joins_.size() >= kWaitingMax) return false;
  if (of_tenant >= static_cast<std::ptrdiff_t>(kWaitingOfTenantMax)) return false;
  joins_.push_back(std::move(join));
  bytes_left_ = bytes_left;
  return true;
}

std::list<WaitingJoins::Waiting> WaitingJoins::Take(TimeNs now, std::uint64_t bytes_left) {
  const bool returned = bytes_left < std::exchange(bytes_left_, bytes_left);
  if (joins_.empty() || (!returned && now < FirstDeadline())) return {};
  return std::exchange(joins_, {});
}

TimeNs WaitingJoins::FirstDeadline() const {
  TimeNs first = kNever;
  for (const Waiting& each : joins_) first = std::min(first, each.deadline);
  return first;
}

}  // namespace phub::server
