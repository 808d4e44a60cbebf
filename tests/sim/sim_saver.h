// An administrator in the simulation who takes snapshots of a job during training, across all
// daemons of its rack or of all racks that it spans. Like client/checkpoint over gRPC, it chooses a
// boundary, makes every daemon begin, and reads what they send. If the job was already past the
// boundary, it begins again. The result is compared with the script's expected parameters and
// optimizer state. It is then sent back to the daemons of rank 0's rack (sim_loader.h). Jobs are
// listed page by page, too.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "tests/sim/script.h"
#include "tests/sim/sim_daemon.h"
#include "tests/sim/sim_loader.h"
#include "tests/sim/sim_network.h"

namespace phub::sim {

class SimSaver {
 public:
  // `daemons`: those of the job's rack, or of all racks that it spans. `session_at`: the session of
  // a rank that may load, at a daemon; empty if no rank may now.
  SimSaver(SimNetwork& network, std::span<const std::unique_ptr<SimDaemon>> daemons,
           SeededRandom& random, const JobScript& script,
           std::function<std::string(std::size_t)> session_at);
  ~SimSaver();

  void Start();
  // Why the run is wrong, or an empty string.
  const std::string& mistake() const;
  std::uint64_t loads_checked() const;
  std::uint64_t pages_listed() const { return pages_listed_; }
  std::uint64_t version_pages() const { return version_pages_; }
  std::uint64_t taken() const { return taken_; }
  std::uint64_t missed() const { return missed_; }
  std::uint64_t cancelled() const { return cancelled_; }

 private:
  class Sink;
  struct Part {  // The part of one daemon.
    v1::GetVersionsResponse versions;
    v1::Snapshot snapshot;
    std::shared_ptr<Sink> sink;
    std::vector<v1::SnapshotKey> keys;
    std::vector<v1::StatePiece> pieces;
  };

  void Ask();
  void AskPage(std::size_t i, std::uint32_t page_size, const std::shared_ptr<bool>& failed);
  void Begin();
  void BeginAt(std::size_t position, std::uint64_t incarnation);
  void Read();
  void OnPart(std::size_t position, const v1::SnapshotPart& part);
  void OnEnd(std::size_t position, const absl::Status& status);
  void GiveBack();
  void Again();
  void Check();
  void LoadBack();
  void List(const std::string& token);
  void CheckPiece(const v1::StatePiece& piece);
  void After(DurationNs delay, std::function<void()> what);
  DurationNs Delay() { return static_cast<DurationNs>(50'000 + random_.Below(2'000'000)); }

  SimNetwork& network_;
  const std::span<const std::unique_ptr<SimDaemon>> daemons_;
  SeededRandom& random_;
  const JobScript& script_;
  const std::function<std::string(std::size_t)> session_at_;
  std::vector<std::shared_ptr<SimLoader>> loaders_;
  std::uint64_t pages_listed_ = 0, version_pages_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::vector<Part> parts_;                      // by daemon
  std::vector<v1::GetVersionsResponse> before_;  // the previous answers
  std::vector<std::uint64_t> targets_;           // by key, in reductions
  std::uint32_t attempt_ = 0;
  std::size_t left_ = 0;
  std::uint64_t taken_ = 0, missed_ = 0, cancelled_ = 0;
  std::string mistake_;
};

}  // namespace phub::sim
