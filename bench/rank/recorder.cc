#include "bench/rank/recorder.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "bench/rank/arguments.h"

namespace phub::bench {
namespace {

std::int64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double OwnCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

// Parses a line like "VmHWM:   1234 kB". Returns bytes.
std::uint64_t KilobytesIn(const std::string& line) {
  return std::stoull(line.substr(line.find(':') + 1)) << 10;
}

}  // namespace

// The ticks of user, nice, system, irq and softirq, without idle, iowait and steal.
double MachineCpuSeconds() {
  std::ifstream file("/proc/stat");
  std::string label;
  std::uint64_t user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0;
  if (!(file >> label >> user >> nice >> system >> idle >> iowait >> irq >> softirq))
    Fail("cannot read /proc/stat");
  return static_cast<double>(user + nice + system + irq + softirq) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

// The scheduler's count in ns, summed over all existing threads.
double ProcessCpuSeconds(std::int32_t pid) {
  std::uint64_t total_ns = 0;
  std::error_code error;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    std::uint64_t ns = 0;
    if (std::ifstream(task.path() / "schedstat") >> ns) total_ns += ns;
  }
  if (error) Fail("cannot read " + tasks + ": " + error.message());
  return static_cast<double>(total_ns) * 1e-9;
}

DaemonMemory MemoryOf(std::int32_t pid) {
  const std::string process = "/proc/" + std::to_string(pid);
  DaemonMemory memory;
  std::ifstream status(process + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) memory.peak_bytes = KilobytesIn(line);
  // smaps has a line per mapping, followed by lines with its sizes.
  std::ifstream maps(process + "/smaps");
  bool is_workers = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.starts_with("Rss:") && is_workers) memory.worker_bytes += KilobytesIn(line);
    if (line.find('-') < line.find(' '))
      is_workers = line.ends_with("/memfd:phub-worker (deleted)");
  }
  if (memory.peak_bytes == 0) Fail("cannot read VmHWM in " + process + "/status");
  return memory;
}

Recorder::Recorder(std::size_t exchange_count, std::vector<std::int32_t> daemon_pids)
    : daemon_pids_(std::move(daemon_pids)) {
  stamps_ns_.reserve(exchange_count + 1);
  begins_ns_.reserve(exchange_count);
}

void Recorder::Start() {
  start_ = Now();
  Stamp();
}

void Recorder::Stamp() { stamps_ns_.push_back(NowNs()); }
void Recorder::StampBegin() { begins_ns_.push_back(NowNs()); }

void Recorder::Finish() {
  end_ = Now();
  for (const std::int32_t pid : daemon_pids_) daemon_memory_.push_back(MemoryOf(pid));
}

void Recorder::Write(const std::string& path, std::uint32_t rank,
                     const std::map<std::string, std::string>& notes,
                     const std::map<std::string, Numbers>& more) const {
  nlohmann::json out = {{"rank", rank},
                        {"stamps_ns", stamps_ns_},
                        {"begins_ns", begins_ns_},
                        {"cpu_s", end_.own_s - start_.own_s},
                        {"daemons_cpu_s", end_.daemons_s - start_.daemons_s},
                        {"machine_cpu_s", end_.machine_s - start_.machine_s},
                        {"daemon_memory", nlohmann::json::array()},
                        {"verified", true},
                        {"notes", notes}};
  for (const DaemonMemory& memory : daemon_memory_) {
    out["daemon_memory"].push_back(
        {{"peak_bytes", memory.peak_bytes}, {"worker_bytes", memory.worker_bytes}});
  }
  for (const auto& [name, numbers] : more) out[name] = numbers;
  // The file appears complete or not at all, so that no one reads half of it.
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished);
  file << out.dump() << '\n';
  file.close();
  if (!file || std::rename(unfinished.c_str(), path.c_str()) != 0) Fail("cannot write " + path);
}

CpuTimes Recorder::Now() const {
  CpuTimes times{.own_s = OwnCpuSeconds(), .machine_s = MachineCpuSeconds()};
  for (const std::int32_t pid : daemon_pids_) times.daemons_s += ProcessCpuSeconds(pid);
  return times;
}

}  // namespace phub::bench
