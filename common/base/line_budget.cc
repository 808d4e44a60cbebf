#include "common/base/line_budget.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace phub {
namespace {

constexpr std::string_view kOthers = "others";

}  // namespace

double LineBudget::LeftAt(const Subject& subject, TimeNs now) const {
  const double seconds = static_cast<double>(now - subject.at) / static_cast<double>(kSecond);
  return std::min(limits_.burst, subject.left + seconds * limits_.per_second);
}

LineBudget::Subject& LineBudget::Find(std::string_view name, TimeNs now) {
  const auto known = subjects_.find(name);
  if (known != subjects_.end()) return known->second;
  if (subjects_.size() >= limits_.subjects_max) {
    std::erase_if(subjects_, [&](const auto& each) {
      return each.second.left_out == 0 && LeftAt(each.second, now) >= limits_.burst;
    });
  }
  if (subjects_.size() >= limits_.subjects_max) name = kOthers;
  return subjects_.try_emplace(std::string(name), Subject{.left = limits_.burst, .at = now})
      .first->second;
}

bool LineBudget::Take(std::string_view name, TimeNs now) {
  Subject& subject = Find(name, now);
  subject.left = LeftAt(subject, now);
  subject.at = now;
  if (subject.left >= 1) {
    subject.left -= 1;
    return true;
  }
  LeaveOut(subject, now);
  return false;
}

void LineBudget::LeaveOut(Subject& subject, TimeNs now) {
  if (subject.left_out++ > 0) return;
  ++with_left_out_;
  subject.summary_at = now + limits_.summary_every;
}

std::vector<LineBudget::Summary> LineBudget::TakeSummaries(TimeNs now) {
  std::vector<Summary> summaries;
  if (with_left_out_ == 0) return summaries;
  for (auto& [name, subject] : subjects_) {
    if (subject.left_out == 0 || now < subject.summary_at) continue;
    summaries.push_back({name, subject.left_out});
    subject.left_out = 0;
    --with_left_out_;
  }
  return summaries;
}

TimeNs LineBudget::NextSummary() const {
  TimeNs next = std::numeric_limits<TimeNs>::max();
  if (with_left_out_ == 0) return next;
  for (const auto& [name, subject] : subjects_) {
    if (subject.left_out > 0) next = std::min(next, subject.summary_at);
  }
  return next;
}

}  // namespace phub
