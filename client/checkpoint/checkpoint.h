// Saved state on its way between daemons and a directory: what Job::SaveCheckpoint, Job::LoadState
// and `phubctl job save` have in common. Knows the control plane's calls and common/checkpoint,
// nothing of engines, sessions' threads or terminals.
//
// Calls block; one thread each, never the engine's or the heartbeat's. They keep nothing when they
// return: a snapshot that was begun is given back, a half-written directory is removed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "phub/v1/admin.grpc.pb.h"
#include "phub/v1/session.grpc.pb.h"

namespace phub::client {

// One daemon of the job's rack; of a job that spans racks, of the rack that asks. The stubs outlive
// the call.
struct CheckpointDaemon {
  std::string endpoint;                           // to name it in errors and in the saved state
  v1::Admin::StubInterface* admin = nullptr;      // saving
  v1::Session::StubInterface* session = nullptr;  // loading
  std::string session_id;                         // loading: of this rank at this daemon
  std::optional<std::uint32_t> rack = {};         // whose part is meant, asked for through `admin`
};

struct TransferProgress {
  enum class Phase : std::uint8_t {
    kChoosing,  // asking for versions, choosing the boundary; `attempt` counts from 1
    kMoving,    // bytes of bytes_max
    kSyncing,   // saving: to disk
  };
  Phase phase = Phase::kChoosing;
  std::uint32_t attempt = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_max = 0;
};

struct TransferOptions {
  DurationNs call_timeout = 30 * kSecond;  // of one unary call
  // How long nothing may move: a boundary that no round reaches, a daemon that is stuck.
  DurationNs idle_timeout = 60 * kSecond;
  // From the calling thread, often. False: give up (kCancelled).
  std::function<bool(const TransferProgress&)> progress;
};

// As it is told to daemons: absolute, on this host, and printable.
v1::SavedState WhereSaved(std::uint64_t iteration, const std::string& directory);

// ---- Saving ------------------------------------------------------------------------------------

struct SaveRequest {
  std::string tenant;  // empty: "default"
  std::string job;
  std::uint64_t incarnation = 0;  // 0: whichever runs
  std::string directory;
};
struct SavedCheckpoint {
  std::uint64_t iteration = 0;  // the boundary; with lockstep false, the highest over the keys
  bool lockstep = true;         // false: keys are at iterations of their own, each at its highest
  std::uint32_t world_size = 0;
  std::uint32_t key_count = 0;
  std::uint64_t bytes = 0;
  std::uint32_t attempts = 0;  // boundaries that were tried
  // Whether every daemon was told, so that the job's workers can name it when the job ends. It is
  // on disk, and whole, all the same.
  absl::Status told;
};
// All daemons of the rack, in its order; one that holds no chunk of the job takes part too. Of a
// job that spans racks it asks the other racks' daemons, through those that are given.
absl::StatusOr<SavedCheckpoint> SaveCheckpoint(std::span<const CheckpointDaemon> daemons,
                                               const SaveRequest& request,
                                               const TransferOptions& options);

// ---- Loading -----------------------------------------------------------------------------------

// A key of the running job, and who has which part of it.
struct LoadKey {
  struct Chunk {
    std::uint32_t daemon = 0;  // position in `daemons`
    std::uint64_t element_offset = 0;
    std::uint32_t element_count = 0;
  };
  v1::KeySpec spec;           // as it was added
  std::vector<Chunk> chunks;  // in order of offset; they tile the key
};
struct LoadedCheckpoint {
  std::uint64_t iteration = 0;
  std::uint32_t world_size = 0;  // of the job that was saved
  v1::LoadedState state;         // as GetLoadedState answers the other ranks
};
// keys: all keys of the job, [key index]. Reads and checks the whole state before the first daemon
// is told of any of it. When this returns OK every daemon holds its part, and rounds of kLoad put
// it in place; on an error no round of kLoad may be pushed.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(std::span<const CheckpointDaemon> daemons,
                                                std::span<const LoadKey> keys,
                                                const std::string& directory,
                                                const TransferOptions& options);

}  // namespace phub::client
