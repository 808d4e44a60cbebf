// Limits the audit entries that tenants cause, so that no tenant can fill the disk or hide other
// entries in a flood. Entries over the limit are counted, and a summary of them is written later.
// Entries by administrators and operators have no limit.
//
// A tenant may cause kAuditBurst entries at once, and one more every kAuditEvery. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"

namespace phub::server {

inline constexpr int kAuditBurst = 30;
inline constexpr DurationNs kAuditEvery = 10 * kSecond;
// A tenant's suppressed entries are summarized at most this often.
inline constexpr DurationNs kAuditSummaryEvery = 60 * kSecond;

class AuditBudgets {
 public:
  struct Summary {
    std::string tenant;
    std::uint64_t count = 0;  // suppressed entries
    DurationNs duration = 0;  // since the first of them
  };

  // Whether an entry caused by the tenant may be written. If not, it is counted.
  bool Take(const std::string& tenant, TimeNs now);
  // Counts an entry that could not be written.
  void NoteSuppressed(const std::string& tenant, TimeNs now);
  // Removes and returns the summaries that are due; all of them if `all`.
  std::vector<Summary> TakeSummaries(TimeNs now, bool all);

 private:
  struct Budget {
    int left = kAuditBurst;
    TimeNs earned_at = 0;  // 0: not used yet
    std::uint64_t suppressed = 0;
    TimeNs suppressed_since = 0;
  };

  std::mutex mutex_;
  std::map<std::string, Budget> budgets_;  // only of tenants whose budget is not full
};

}  // namespace phub::server
