// Limits the log lines that others can cause: for each subject (a tenant, a reason) a burst, then
// so many per second. One line a while says how many were left out. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"

namespace phub {

class LineBudget {
 public:
  struct Limits {
    double burst = 0;
    double per_second = 0;
    DurationNs summary_every = 10 * kSecond;
    std::size_t subjects_max = 4096;  // if there are more at a time, they share one budget
  };
  struct Summary {
    std::string subject;
    std::uint64_t count = 0;
  };

  explicit LineBudget(const Limits& limits) : limits_(limits) {}

  // Whether to write a line about the subject now.
  bool Take(std::string_view subject, TimeNs now);
  // Counts a line about the subject that the caller leaves out for another reason.
  void LeaveOut(std::string_view subject, TimeNs now) { LeaveOut(Find(subject, now), now); }
  // Whose lines were left out; each subject at most once per summary_every.
  std::vector<Summary> TakeSummaries(TimeNs now);
  TimeNs NextSummary() const;  // INT64_MAX: nothing was left out

 private:
  struct Subject {
    double left = 0;
    TimeNs at = 0;
    std::uint64_t left_out = 0;
    TimeNs summary_at = 0;  // while left_out > 0
  };
  double LeftAt(const Subject& subject, TimeNs now) const;
  Subject& Find(std::string_view name, TimeNs now);
  void LeaveOut(Subject& subject, TimeNs now);

  const Limits limits_;
  std::map<std::string, Subject, std::less<>> subjects_;
  std::size_t with_left_out_ = 0;  // subjects
};

}  // namespace phub
