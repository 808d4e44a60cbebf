#include "client/session/timeline.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <tuple>
#include <utility>

#include "client/session/fork.h"
#include "common/base/log.h"
#include "common/base/printable.h"

namespace phub::client {
namespace {

constexpr const char* kPathVariable = "PHUB_TIMELINE";
constexpr const char* kWindowVariable = "PHUB_TIMELINE_ITERATIONS";
constexpr std::size_t kClocksMax = 1024;  // whose clocks are kept, for processes with many jobs

bool ParseCount(std::string_view text, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

Timeline* FromEnvironment() {
  const Result<TimelineSettings> settings =
      ReadTimelineSettings(std::getenv(kPathVariable), std::getenv(kWindowVariable));
  if (!settings.ok()) {
    LogWarning("event=timeline_off error=\"{}\"", settings.status().message());
    return nullptr;
  }
  if (settings->path.empty()) return nullptr;
  auto* const timeline = new Timeline(*settings);
  std::atexit([] { Timeline::OfProcess()->Write(); });
  return timeline;
}

}  // namespace

Result<TimelineSettings> ReadTimelineSettings(const char* path, const char* window) {
  if (path == nullptr || *path == '\0') return TimelineSettings{};
  TimelineSettings settings{.path = path};
  const std::string_view text = window == nullptr ? ":" : window;
  const std::size_t colon = text.find(':');
  bool valid = colon != std::string_view::npos;
  if (valid) {
    const std::string_view first = text.substr(0, colon), end = text.substr(colon + 1);
    valid = (first.empty() || ParseCount(first, settings.first)) &&
            (end.empty() || ParseCount(end, settings.end)) && settings.first < settings.end;
  }
  if (!valid)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is '{}'; it must be two numbers like 10:20, which means the "
                              "iterations from 10 to 19",
                              kWindowVariable, text));
  return settings;
}

std::string TimelinePath(std::string_view path, std::uint32_t rank) {
  constexpr std::string_view kRank = "%r", kExtension = ".json";
  std::string result(path);
  if (const std::size_t at = path.find(kRank); at != std::string_view::npos)
    return result.replace(at, kRank.size(), std::to_string(rank));
  const bool extended = path.size() > kExtension.size() && path.ends_with(kExtension);
  const std::size_t at = path.size() - (extended ? kExtension.size() : 0);
  return result.insert(at, fmt::format(".rank{}", rank));
}

Timeline* Timeline::OfProcess() {
  static Timeline* const timeline = FromEnvironment();
  return timeline;
}

std::uint32_t Timeline::AddKey(std::string_view job, std::uint32_t rank, std::string_view key) {
  const std::lock_guard lock(mutex_);
  if (tracks_.size() == settings_.keys_max) {
    ++keys_left_out_;
    return kNoTrack;
  }
  const std::string who = rank == rank_ ? "" : fmt::format(", rank {}", rank);
  tracks_.push_back(fmt::format("{} (job {}{})", key, job, who));
  return static_cast<std::uint32_t>(tracks_.size() - 1);
}

void Timeline::Add(const Record& record) {
  const std::lock_guard lock(mutex_);
  AddLocked(record);
}

void Timeline::AddLocked(const Record& record) {
  if (records_.size() < settings_.records_max) {
    records_.push_back(record);
  } else {
    records_[added_ % settings_.records_max] = record;
  }
  ++added_;
  changed_ = true;
}

void Timeline::AddComputation(std::string_view name, std::uint64_t iteration, TimeNs begin,
                              TimeNs end) {
  if (!Includes(iteration) || end < begin) return;
  const std::lock_guard lock(mutex_);
  auto known = computation_of_.find(name);
  if (known == computation_of_.end()) {
    // Once there are too many names, the others share one.
    const bool full = computations_.size() >= settings_.keys_max;
    const std::string used = full ? "computation" : std::string(name);
    const auto index = static_cast<std::uint32_t>(computations_.size());
    bool added = false;
    std::tie(known, added) = computation_of_.emplace(used, index);
    if (added) computations_.push_back(Printable(used, kNameBytesMax));
  }
  AddLocked({.track = known->second,
             .thread = gettid(),
             .computation = true,
             .begin = begin,
             .end = end,
             .iteration = iteration});
}

void Timeline::JobBegan(std::uint32_t rank, const std::vector<MeasuredClock>& clocks) {
  const std::lock_guard lock(mutex_);
  if (!rank_) {
    rank_ = rank;
    records_.reserve(settings_.records_max);  // address space only, until records are added
  }
  ++jobs_;
  changed_ = true;
  for (const MeasuredClock& clock : clocks) NoteClock(clock);
}

void Timeline::NoteClock(const MeasuredClock& measured) {
  const auto known = std::ranges::find_if(clocks_, [&](const MeasuredClock& each) {
    return each.host == measured.host && each.started_ns == measured.started_ns;
  });
  if (known == clocks_.end()) {
    if (clocks_.size() < kClocksMax) clocks_.push_back(measured);
  } else if (measured.error < known->error) {
    *known = measured;
  }
}

void Timeline::JobEnded() {
  const std::lock_guard lock(mutex_);
  if (--jobs_ == 0) WriteLocked();
}

void Timeline::Write() {
  if (InForkedChild()) return;  // the parent writes it, and another thread may hold the lock
  const std::lock_guard lock(mutex_);
  WriteLocked();
}

void Timeline::WriteLocked() {
  if (!changed_) return;
  changed_ = false;
  const std::string path = TimelinePath(settings_.path, rank_.value_or(0));
  errno = 0;
  std::FILE* const file = std::fopen(path.c_str(), "we");
  const bool written = file != nullptr && WriteJson([file](std::string_view text) {
                         return std::fwrite(text.data(), 1, text.size(), file) == text.size();
                       });
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (!written || !closed) {
    LogWarning("event=timeline_not_written file=\"{}\" error=\"{}\"", path,
               std::generic_category().message(errno));
    return;
  }
  const std::uint64_t lost = added_ - records_.size();
  if ((lost > 0 || keys_left_out_ > 0) && !std::exchange(warned_, true))
    LogWarning(
        "event=timeline_incomplete file=\"{}\" records_lost={} keys_left_out={} "
        "hint=\"only the newest {} records are kept: set {}\"",
        path, lost, keys_left_out_, settings_.records_max, kWindowVariable);
}

// ---- Keys --------------------------------------------------------------------------------------

void KeyTrace::Begin(Timeline& timeline, std::uint32_t track) {
  if (track == Timeline::kNoTrack) return;
  timeline_ = &timeline;
  track_ = track;
}

void KeyTrace::Push(std::uint64_t ticket, const Timeline::Record& round) {
  recording_ = timeline_->Includes(round.iteration);
  if (!recording_) return;
  round_ = round;
  round_.track = track_;
  recorded_ticket_.store(ticket, std::memory_order_relaxed);
}

void KeyTrace::Sent(bool all) {
  if (!recording_) return;
  const TimeNs now = SystemClock().Now();
  if (round_.sending == 0) round_.sending = now;
  if (all) round_.sent = now;
}

void KeyTrace::Complete(bool skipped) {
  if (!recording_) return;
  round_.end = SystemClock().Now();
  if (round_.sending == 0) round_.sending = round_.end;
  if (round_.sent == 0) round_.sent = round_.end;
  round_.skipped = skipped;
  timeline_->Add(round_);
}

KeyTrace::Waiting::Waiting(const KeyTrace& trace, std::uint64_t ticket) {
  if (!trace.on() || trace.recorded_ticket_.load(std::memory_order_relaxed) != ticket) return;
  timeline_ = trace.timeline_;
  record_.track = trace.track_;
  record_.thread = gettid();
  record_.begin = SystemClock().Now();
}

KeyTrace::Waiting::~Waiting() {
  if (timeline_ == nullptr) return;
  record_.end = SystemClock().Now();
  timeline_->Add(record_);
}

}  // namespace phub::client
