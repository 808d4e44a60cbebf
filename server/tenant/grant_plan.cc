#include "server/tenant/grant_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/units.h"

namespace phub::server {
namespace {

// What a daemon asks for beyond its need is at most this part of the quota, and this part of what
// is left, so that a few daemons leave something for the next one.
constexpr std::uint64_t kSparePartOfQuota = 16;
constexpr std::uint64_t kSparePartOfRest = 4;

std::uint64_t Usage::*MemberOf(Resource resource) {
  switch (resource) {
    case Resource::kJobs: return &Usage::jobs;
    case Resource::kWorkers: return &Usage::workers;
    case Resource::kKeys: return &Usage::keys;
    case Resource::kMemory: break;
  }
  return &Usage::memory_bytes;
}

std::uint64_t Left(std::uint64_t limit, std::uint64_t used) {
  return limit > used ? limit - used : 0;
}

}  // namespace

const char* ToString(Resource resource) {
  switch (resource) {
    case Resource::kJobs: return "jobs";
    case Resource::kWorkers: return "workers";
    case Resource::kKeys: return "keys";
    case Resource::kMemory: return "memory";
  }
  return "?";
}

std::uint64_t& At(Usage& usage, Resource resource) { return usage.*MemberOf(resource); }
std::uint64_t At(const Usage& usage, Resource resource) { return usage.*MemberOf(resource); }

std::optional<std::uint64_t> LimitOf(const Quota& quota, Resource resource) {
  switch (resource) {
    case Resource::kJobs: return quota.jobs;
    case Resource::kWorkers: return quota.workers;
    case Resource::kKeys: return quota.keys;
    case Resource::kMemory: break;
  }
  return quota.memory_bytes;
}

std::string Describe(std::uint64_t amount, Resource resource) {
  if (resource == Resource::kMemory) return HumanBytes(amount) + " memory";
  std::string what = ToString(resource);
  if (amount == 1) what.pop_back();  // "1 job"
  return fmt::format("{} {}", amount, what);
}

std::string Describe(const Usage& usage) {
  std::string text;
  for (const Resource resource : kGrantedResources) {
    text += (text.empty() ? "" : ", ") + Describe(At(usage, resource), resource);
  }
  return text;
}

GrantPlan PlanGrant(const GrantQuestion& question) {
  GrantPlan plan;
  Usage needed = question.charged;
  const auto lacks = [&](const Usage& more, Resource resource) {
    const std::optional<std::uint64_t> limit = LimitOf(question.quota, resource);
    const std::uint64_t used = At(question.others, resource) + At(needed, resource);
    return limit && At(more, resource) > Left(*limit, used);
  };
  for (const Usage& more : question.waiting) {
    std::vector<Resource> lacking;
    for (const Resource resource : kGrantedResources) {
      if (lacks(more, resource)) lacking.push_back(resource);
    }
    const bool fits = lacking.empty();
    plan.lacking.push_back(std::move(lacking));
    plan.is_short = plan.is_short || !fits;
    if (!fits) continue;
    for (const Resource resource : kGrantedResources) At(needed, resource) += At(more, resource);
  }
  for (const Resource resource : kGrantedResources) {
    const std::optional<std::uint64_t> limit = LimitOf(question.quota, resource);
    if (!limit) continue;
    const std::uint64_t need = At(needed, resource);
    const std::uint64_t rest = Left(*limit, At(question.others, resource) + need);
    std::uint64_t spare = 0;
    if (!plan.is_short && !question.others_want) {
      spare =
          std::min(std::max<std::uint64_t>(1, *limit / kSparePartOfQuota), rest / kSparePartOfRest);
      // A daemon keeps what it has while nobody else needs it.
      spare = std::max(spare, std::min(rest, Left(At(question.held, resource), need)));
    }
    At(plan.grant, resource) = need + spare;
  }
  return plan;
}

}  // namespace phub::server
