// The cluster that a seed decides: what cluster.h runs. One object per run; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/sim/cluster.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/sim_worker.h"

namespace phub::sim {

class Cluster {
 public:
  explicit Cluster(std::uint64_t seed);
  ~Cluster();

  Outcome Run();

 private:
  // A rank of a job: its processes, the last of them the one that lives, or lived last.
  struct Seat {
    std::vector<std::unique_ptr<SimWorker>> processes;
    bool awaited = false;  // a process died, and another one will come
    SimWorker& worker() const { return *processes.back(); }
  };
  struct Job : SimJob {
    std::vector<Seat> seats;
    TimeNs crashed_at = 0;  // by fate
  };

  // cluster.cc
  void BuildRack();
  void DrawJobs();
  void StartWorkers();
  void AddProcess(Job& job, std::uint32_t rank);
  void Tick();
  void ScheduleBreak();
  void ScheduleCrashes(Job& job);
  void CrashSomebody(Job& job);
  void Advance();
  void BringFates();
  void BringDaemonDeath();
  bool Finished() const;
  template <typename Visit>
  void ForEachSeat(const Visit& visit) const {
    for (const auto& job : jobs_) {
      for (const Seat& seat : job->seats) visit(*job, seat);
    }
  }

  // cluster_judge.cc
  std::string Judge() const;
  std::string JudgeDaemons() const;
  std::string JudgeWorker(const Job& job, const SimWorker& worker) const;
  std::string JudgeLostDaemon(const Job& job, const SimWorker& worker) const;
  std::string JudgeNames(const Job& job, const SimWorker& worker) const;
  Coverage Measure() const;
  std::string Describe() const;

  SeededRandom random_;
  SimNetwork network_;
  SeededRandom control_random_;
  SimRack rack_;
  std::vector<std::unique_ptr<Job>> jobs_;
  NodeId next_node_ = 0;
  std::uint64_t breaks_per_second_ = 0;
  TimeNs faults_until_ = 0;
  std::uint32_t doomed_ = 0;  // the daemon that dies, if one does
  TimeNs daemon_died_at_ = 0;
  std::uint64_t crashes_ = 0;
  std::string problem_;
};

}  // namespace phub::sim
