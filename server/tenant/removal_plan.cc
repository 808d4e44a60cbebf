#include "server/tenant/removal_plan.h"

#include <fmt/format.h>

namespace phub::server {
namespace {

constexpr std::size_t kNamedMax = 8;

// "a (...) uses 1 job, 2 workers".
std::string DescribeUse(const RemovalAnswer& answer) {
  std::string text;
  for (const Resource resource : kGrantedResources) {
    const std::uint64_t amount = At(answer.used, resource);
    if (amount == 0) continue;
    text += (text.empty() ? "" : ", ") + Describe(amount, resource);
  }
  return fmt::format("{} uses {}", answer.daemon, text);
}

class Names {
 public:
  void Add(const std::string& text) {
    if (++count_ <= kNamedMax) text_ += (text_.empty() ? "" : "; ") + text;
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    if (count_ <= kNamedMax) return text_;
    return fmt::format("{}; and {} more", text_, count_ - kNamedMax);
  }

 private:
  std::string text_;
  std::size_t count_ = 0;
};

}  // namespace

absl::StatusOr<bool> PlanRemoval(const std::string& tenant,
                                 const std::vector<RemovalAnswer>& answers, bool has_time) {
  Names users;
  Names silent;
  for (const RemovalAnswer& answer : answers) {
    if (!answer.given) {
      silent.Add(answer.daemon);
    } else if (answer.used != Usage{}) {
      users.Add(DescribeUse(answer));
    }
  }
  if (!silent.empty() && has_time) return false;
  if (!users.empty()) {
    return absl::FailedPreconditionError(
        fmt::format("tenant {} was not deleted, it is in use: {}. Suspend the tenant, evict its "
                    "jobs at these daemons, and try again",
                    tenant, users.text()));
  }
  if (silent.empty()) return true;
  return absl::FailedPreconditionError(fmt::format(
      "tenant {} was not deleted: these daemons have not answered, and may run its jobs: {}. Try "
      "again when they are connected to etcd, or, if they are gone, after their quota_grace",
      tenant, silent.text()));
}

}  // namespace phub::server
