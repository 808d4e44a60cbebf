// The log lines that tenants and their workers cause, within a budget: a tenant that joins, fails
// or is refused in a loop must not fill the disk or hide other lines. Left-out lines are counted
// (phub_log_lines_suppressed_total) and reported. Owned by Context; under control's lock.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/line_budget.h"
#include "common/base/log.h"
#include "server/control/counters.h"

namespace phub::server {

class EventLog {
 public:
  // Both must outlive it.
  EventLog(const Clock& clock, ControlCounters& counters) : clock_(clock), counters_(counters) {}

  // The first placeholder of the format is the tenant, whose budget pays for the line.
  template <typename... Args>
  void Info(fmt::format_string<const std::string&, Args...> format, const std::string& tenant,
            Args&&... args) {
    if (!TakeLine(tenant)) return;
    LogInfo<const std::string&, Args...>(format, tenant, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void Warning(fmt::format_string<const std::string&, Args...> format, const std::string& tenant,
               Args&&... args) {
    if (!TakeLine(tenant)) return;
    LogWarning<const std::string&, Args...>(format, tenant, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void Error(fmt::format_string<const std::string&, Args...> format, const std::string& tenant,
             Args&&... args) {
    if (!TakeLine(tenant)) return;
    LogError<const std::string&, Args...>(format, tenant, std::forward<Args>(args)...);
  }
  // A refusal. Each reason has a budget, and each peer has a part of it, so that one peer does not
  // use up the lines of the others. `peer`: a tenant or an address; empty: not known.
  void Refusal(ControlCounter reason, const std::string& peer, std::string_view message);

  // Whether to write a line about a refusal at the data port now. Peers that are not identified are
  // subjects there: address blocks, and users of this host.
  bool MayLogLaneRefusal(std::string_view peer);

  // Reports what was left out.
  void Poll();
  TimeNs NextTimer() const;

 private:
  bool TakeLine(const std::string& tenant);

  const Clock& clock_;
  ControlCounters& counters_;
  LineBudget of_tenants_{kTenantLines};
  LineBudget refusals_{kRefusalLines};        // [reason]
  LineBudget refusals_of_peers_{kPeerLines};  // [reason and peer]
  LineBudget refused_lanes_{kLaneLines};      // [peer]
  TimeNs peers_forgotten_at_ = 0;

  // The start of a job of 1024 ranks with several lanes each fits into the burst.
  static constexpr LineBudget::Limits kTenantLines{.burst = 20'000, .per_second = 50};
  static constexpr LineBudget::Limits kRefusalLines{.burst = 100, .per_second = 5};
  static constexpr LineBudget::Limits kPeerLines{.burst = 20, .per_second = 1};
  static constexpr LineBudget::Limits kLaneLines{
      .burst = 1, .per_second = 0.1, .subjects_max = 256};
};

}  // namespace phub::server
