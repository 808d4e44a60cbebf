#include "server/control/racks/held_joins.h"

#include <algorithm>
#include <utility>

#include "server/control/jobs/job.h"
#include "server/control/on_control.h"

namespace phub::server {
namespace {

constexpr std::size_t kHeldMax = 4096;
constexpr std::size_t kHeldBytesMax = 256 << 20;  // each contains its job's plan

bool IsOfRun(const HeldJoin& held, std::string_view tenant, std::string_view job,
             std::uint64_t incarnation) {
  return held.request.tenant() == tenant && held.request.job() == job &&
         held.request.incarnation() == incarnation;
}

bool IsOfSameProcess(const v1::JoinRequest& one, const v1::JoinRequest& other) {
  return one.tenant() == other.tenant() && one.job() == other.job() && one.rank() == other.rank() &&
         one.host() == other.host() && one.pid() == other.pid();
}

}  // namespace

TimeNs HeldJoins::FirstDeadline() const {
  PHUB_ON_CONTROL();
  TimeNs first = kNever;
  for (const HeldJoin& held : joins_) first = std::min(first, held.deadline);
  return first;
}

bool HeldJoins::Add(HeldJoin held) {
  const auto earlier = std::ranges::find_if(
      joins_, [&](const HeldJoin& each) { return IsOfSameProcess(each.request, held.request); });
  if (earlier != joins_.end()) {
    const Answer<v1::JoinResponse> answer = std::move(earlier->answer);
    joins_.erase(earlier);
    answer(absl::CancelledError("the rank called Join again"), {});
  }
  std::size_t bytes = held.request.ByteSizeLong();
  for (const HeldJoin& each : joins_) bytes += each.request.ByteSizeLong();
  if (joins_.size() >= kHeldMax || bytes > kHeldBytesMax) return false;
  joins_.push_back(std::move(held));
  return true;
}

template <typename Predicate>
std::list<HeldJoin> HeldJoins::TakeIf(Predicate&& wanted) {
  std::list<HeldJoin> taken;
  for (auto held = joins_.begin(); held != joins_.end();) {
    const auto next = std::next(held);
    if (wanted(*held)) taken.splice(taken.end(), joins_, held);
    held = next;
  }
  return taken;
}

std::list<HeldJoin> HeldJoins::Take(std::string_view tenant, std::string_view job,
                                    std::uint64_t incarnation) {
  return TakeIf([&](const HeldJoin& held) { return IsOfRun(held, tenant, job, incarnation); });
}

bool HeldJoins::Has(std::string_view tenant, std::string_view job) const {
  return std::ranges::any_of(joins_, [&](const HeldJoin& held) {
    return held.request.tenant() == tenant && held.request.job() == job;
  });
}

std::list<HeldJoin> HeldJoins::TakeLate(TimeNs now) {
  return TakeIf([&](const HeldJoin& held) { return now >= held.deadline; });
}

bool HeldJoins::NoteAsked(std::string_view tenant, std::string_view job, std::uint64_t incarnation,
                          std::uint64_t instance) {
  const auto is_of_run = [&](const HeldJoin& held) {
    return IsOfRun(held, tenant, job, incarnation);
  };
  const bool asked = std::ranges::any_of(joins_, [&](const HeldJoin& held) {
    return is_of_run(held) && held.asked_instance == instance;
  });
  if (asked) return true;
  const auto last = std::find_if(joins_.rbegin(), joins_.rend(), is_of_run);
  if (last != joins_.rend()) last->asked_instance = instance;
  return false;
}

void HeldJoins::NoteRequestsLost() {
  for (HeldJoin& held : joins_) held.asked_instance.reset();
}

void HeldJoins::NoteRequestLost(std::string_view tenant, std::uint64_t incarnation) {
  PHUB_ON_CONTROL();
  for (HeldJoin& held : joins_) {
    const bool is = held.request.incarnation() == incarnation && held.request.tenant() == tenant;
    if (is) held.asked_instance.reset();
  }
}

}  // namespace phub::server
