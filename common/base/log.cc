#include "common/base/log.h"

#include <fmt/format.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/printable.h"

namespace phub {
namespace {

constexpr const char* kName = "phub";
constexpr const char* kPattern = "%Y-%m-%dT%H:%M:%S.%e level=%l %v";
constexpr auto kFlushPoll = std::chrono::milliseconds(1);

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Counts the lines that are written.
class CountingSink final : public spdlog::sinks::stderr_color_sink_mt {
 public:
  void log(const spdlog::details::log_msg& message) override {
    spdlog::sinks::stderr_color_sink_mt::log(message);
    flush();
    written_.fetch_add(1);
  }
  std::uint64_t written() const { return written_.load(); }

 private:
  std::atomic<std::uint64_t> written_{0};
};

// Never destroyed: at exit its thread may be blocked by a reader that has stalled.
struct LogThread {
  explicit LogThread(std::size_t lines_max_in)
      : lines_max(lines_max_in),
        pool(std::make_shared<spdlog::details::thread_pool>(lines_max_in, 1,
                                                            [] { NameThisThread("log"); })),
        logger(std::make_shared<spdlog::async_logger>(
            kName, sink, pool, spdlog::async_overflow_policy::overrun_oldest)) {
    logger->set_pattern(kPattern);
  }

  const std::size_t lines_max;
  const std::shared_ptr<CountingSink> sink = std::make_shared<CountingSink>();
  const std::shared_ptr<spdlog::details::thread_pool> pool;
  const std::shared_ptr<spdlog::async_logger> logger;
  std::atomic<std::uint64_t> posted{0};
  std::atomic<std::uint64_t> drops_reported{0};
};
std::atomic<LogThread*> log_thread{nullptr};

// Never destroyed: threads of libphub may log while the process exits.
spdlog::logger& DirectLogger() {
  static const std::shared_ptr<spdlog::logger>& logger = *[] {
    auto* const created = new std::shared_ptr<spdlog::logger>(spdlog::stderr_color_mt(kName));
    (*created)->set_pattern(kPattern);
    (*created)->flush_on(spdlog::level::info);
    return created;
  }();
  return *logger;
}

// Where lines go instead of standard error. Never destroyed: threads may log during exit.
struct SinkSlot {
  std::mutex mutex;
  LogSink sink = nullptr;
  void* context = nullptr;
  std::atomic<bool> used{false};
};
SinkSlot& Slot() {
  static SinkSlot* const slot = new SinkSlot;
  return *slot;
}

// False if there is no sink.
bool PassToSink(LogLevel level, const std::string& line) {
  SinkSlot& slot = Slot();
  if (!slot.used.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(slot.mutex);
  if (slot.sink == nullptr) return false;
  if (LogEnabled(level)) slot.sink(slot.context, level, line);
  return true;
}

void Post(LogThread& thread, spdlog::level::level_enum level, const std::string& line) {
  thread.posted.fetch_add(1);
  thread.logger->log(level, "{}", line);
}

// Once there is room again, a line says how many were dropped.
void ReportDrops(LogThread& thread) {
  const std::uint64_t dropped = thread.pool->overrun_counter();
  std::uint64_t reported = thread.drops_reported.load();
  if (dropped == reported || thread.pool->queue_size() > thread.lines_max / 2) return;
  if (!thread.drops_reported.compare_exchange_strong(reported, dropped)) return;
  Post(thread, spdlog::level::warn,
       fmt::format("event=log_lines_dropped count={}", dropped - reported));
}

}  // namespace

void SetLogLevel(LogLevel level) { DirectLogger().set_level(ToSpdlog(level)); }

void SetLogSink(LogSink sink, void* context) {
  SinkSlot& slot = Slot();
  const std::lock_guard lock(slot.mutex);
  slot.sink = sink;
  slot.context = context;
  slot.used.store(sink != nullptr, std::memory_order_release);
}

bool ParseLogLevel(std::string_view text, LogLevel& level) {
  if (text == "debug")
    level = LogLevel::kDebug;
  else if (text == "info")
    level = LogLevel::kInfo;
  else if (text == "warning")
    level = LogLevel::kWarning;
  else if (text == "error")
    level = LogLevel::kError;
  else
    return false;
  return true;
}

bool LogEnabled(LogLevel level) { return DirectLogger().should_log(ToSpdlog(level)); }

void LogLine(LogLevel level, const std::string& line) {
  if (PassToSink(level, line)) return;
  LogThread* const thread = log_thread.load(std::memory_order_acquire);
  if (thread == nullptr) return DirectLogger().log(ToSpdlog(level), "{}", line);
  if (!LogEnabled(level)) return;
  ReportDrops(*thread);
  Post(*thread, ToSpdlog(level), line);
}

void StartLogThread(std::size_t lines_max) {
  PHUB_CHECK(lines_max > 0 && log_thread.load() == nullptr, "lines_max={}", lines_max);
  try {
    log_thread.store(new LogThread(lines_max), std::memory_order_release);
  } catch (const std::exception& error) {
    // Lines are then written by the threads that log.
    LogWarning("event=log_thread_not_started error=\"{}\"", error.what());
  }
}

std::uint64_t DroppedLogLines() {
  const LogThread* const thread = log_thread.load(std::memory_order_acquire);
  return thread == nullptr ? 0 : thread->pool->overrun_counter();
}

bool FlushLog(DurationNs timeout) {
  const LogThread* const thread = log_thread.load(std::memory_order_acquire);
  if (thread == nullptr) return true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout);
  while (thread->sink->written() + thread->pool->overrun_counter() < thread->posted.load()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kFlushPoll);
  }
  return true;
}

}  // namespace phub

fmt::format_context::iterator fmt::formatter<phub::LogText>::format(
    const phub::LogText& text, fmt::format_context& context) const {
  const std::string escaped = phub::Escaped(text.text);
  return std::copy(escaped.begin(), escaped.end(), context.out());
}
