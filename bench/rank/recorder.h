// What a rank records while it is timed: the end of each exchange, and the CPU time.
//
// CPU time is read in two ways. The machine's CPU time from /proc/stat includes interrupts, which
// belong to no process and in which a loopback or a network does its work. It also includes
// unrelated processes. The processes' own CPU time (each rank its own, rank 0 also the daemons')
// includes neither.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace phub::bench {

struct CpuTimes {
  double own_s = 0;      // user and system time of all threads of this process
  double daemons_s = 0;  // the CPU time of the daemons in daemon_pids
  double machine_s = 0;  // all cores, including interrupts
};

struct DaemonMemory {
  std::uint64_t peak_bytes = 0;  // peak resident memory since the start or the last reset
  // The part of the resident memory that the daemon lends to workers for gradients.
  std::uint64_t worker_bytes = 0;
};

class Recorder {
 public:
  // `daemon_pids`: empty except on rank 0.
  Recorder(std::size_t exchange_count, std::vector<std::int32_t> daemon_pids);

  void Start();  // before the first timed exchange
  void Stamp();  // after each exchange
  // Before each exchange, if untimed work separates the exchanges.
  void StampBegin();
  void Finish();  // after the last exchange

  // Writes what the harness reads, as JSON: rank, stamps_ns and begins_ns (CLOCK_MONOTONIC), cpu_s,
  // daemons_cpu_s and machine_cpu_s between Start() and Finish(), daemon_memory, verified, notes.
  // Call it only after the results were verified. `more`: additional objects of numbers, by name.
  using Numbers = std::map<std::string, double>;
  void Write(const std::string& path, std::uint32_t rank,
             const std::map<std::string, std::string>& notes,
             const std::map<std::string, Numbers>& more = {}) const;

 private:
  CpuTimes Now() const;

  const std::vector<std::int32_t> daemon_pids_;
  std::vector<std::int64_t> stamps_ns_;
  std::vector<std::int64_t> begins_ns_;  // empty, or one for each exchange
  CpuTimes start_;
  CpuTimes end_;
  std::vector<DaemonMemory> daemon_memory_;
};

// The CPU time of the machine and of a process so far, in seconds, as the Recorder reads them.
double MachineCpuSeconds();
double ProcessCpuSeconds(std::int32_t pid);
DaemonMemory MemoryOf(std::int32_t pid);

}  // namespace phub::bench
