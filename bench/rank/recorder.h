// What a rank writes down while it is timed: when each exchange ended, and how much CPU was taken.
//
// CPU is read in two ways. Of the whole machine, from /proc/stat: time in interrupts, where a
// loopback's or a network's work is done, belongs to no process. And of the processes themselves,
// each its own, rank 0 the daemons' too: that leaves interrupts out, but not what others do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace phub::bench {

struct CpuTimes {
  double own_s = 0;      // of this process, all threads, user and system
  double daemons_s = 0;  // of the daemons that were named
  double machine_s = 0;  // of all cores, interrupts included
};

struct DaemonMemory {
  std::uint64_t peak_bytes = 0;  // resident, since it started or its peak was reset
  // Of what is resident now: memory that it lends to workers for their gradients.
  std::uint64_t worker_bytes = 0;
};

class Recorder {
 public:
  // `daemon_pids`: empty but at rank 0.
  Recorder(std::size_t exchange_count, std::vector<std::int32_t> daemon_pids);

  void Start();  // before the first timed exchange
  void Stamp();  // after each
  // Before each, if something that is not timed comes between one and the next.
  void StampBegin();
  void Finish();  // after the last

  // What the harness reads, as JSON: rank, stamps_ns and begins_ns (CLOCK_MONOTONIC), cpu_s,
  // daemons_cpu_s and machine_cpu_s between Start() and Finish(), daemon_memory, verified, notes.
  // Whoever writes says by that that the results were verified. `more`: further objects of numbers,
  // by name.
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

// The machine-wide and a process's CPU time so far, in seconds, as the Recorder reads them.
double MachineCpuSeconds();
double ProcessCpuSeconds(std::int32_t pid);
DaemonMemory MemoryOf(std::int32_t pid);

}  // namespace phub::bench
