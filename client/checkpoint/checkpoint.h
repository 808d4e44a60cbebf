// Transfers checkpoints between daemons and a directory. Shared by Job::SaveCheckpoint,
// Job::LoadCheckpoint and `phubctl job save`. Depends only on the control plane's calls and
// common/checkpoint, not on engines, session threads or terminals.
//
// Both calls may be repeated, since they lead to a state: a newer snapshot of the same caller
// replaces the older one (BeginSnapshotRequest.saver), an incomplete directory is discarded, and a
// newer LoadState replaces the older one.
//
// Calls block, each on one thread, never the engine's or heartbeat thread. When a call returns,
// its snapshots are released, and an incomplete directory is removed.
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

// One daemon of the job's rack, or of the caller's rack if the job spans racks. The stubs must
// outlive the call.
struct CheckpointDaemon {
  std::string endpoint;                           // its name in errors and in the checkpoint
  v1::Admin::StubInterface* admin = nullptr;      // for saving
  v1::Session::StubInterface* session = nullptr;  // for loading
  std::string session_id;                         // for loading: this rank's session
  std::optional<std::uint32_t> rack = {};         // call this rack's counterpart through `admin`
};

struct TransferProgress {
  enum class Phase : std::uint8_t {
    kChoosing,  // asks for versions and chooses the boundary; `attempt` counts from 1
    kMoving,    // transferred `bytes` of bytes_max
    kSyncing,   // saving: writes to disk
  };
  Phase phase = Phase::kChoosing;
  std::uint32_t attempt = 0;
  std::uint64_t bytes = 0;
  std::uint64_t bytes_max = 0;
};

struct TransferOptions {
  DurationNs call_timeout = 30 * kSecond;  // of one unary call
  // Limit of time without progress: no round reaches the boundary, or a daemon is stuck.
  DurationNs idle_timeout = 60 * kSecond;
  // How long daemons may be unreachable or too busy before the call fails; negative: no limit.
  // Until then the transfer begins again. It is not a part of idle_timeout.
  DurationNs outage_timeout = 60 * kSecond;
  // Called often, on the calling thread. Returns false to cancel (kCancelled).
  std::function<bool(const TransferProgress&)> progress;
  bool lasts = true;  // the directory; false: daemons are not told of it
  // Optional. Called when an outage begins and every ten seconds of it, on the calling thread,
  // with the error and how long the outage has lasted.
  std::function<void(const absl::Status& error, DurationNs waited)> waiting;
};

// The place of a checkpoint as reported to daemons: absolute path, this host, printable.
v1::SavedState WhereSaved(std::uint64_t iteration, const std::string& directory);

// ---- Saving ------------------------------------------------------------------------------------

struct SaveRequest {
  std::string tenant;  // empty: "default"
  std::string job;
  std::uint64_t incarnation = 0;  // 0: any
  std::string directory;
};
struct SavedCheckpoint {
  std::uint64_t iteration = 0;  // the boundary; without lockstep the maximum over the keys
  bool lockstep = true;         // false: each key was saved at its own highest iteration
  std::uint32_t world_size = 0;
  std::uint32_t key_count = 0;
  std::uint64_t bytes = 0;
  std::uint32_t attempts = 0;  // number of boundaries tried
  // OK if every daemon was notified, so that the errors of the job's workers can name the
  // checkpoint. The checkpoint is complete on disk even if this failed.
  absl::Status told;
};
// daemons: all daemons of the rack in its order, including those without chunks of the job. If the
// job spans racks, the daemons of other racks are called through these.
absl::StatusOr<SavedCheckpoint> SaveCheckpoint(std::span<const CheckpointDaemon> daemons,
                                               const SaveRequest& request,
                                               const TransferOptions& options);

// ---- Loading -----------------------------------------------------------------------------------

// A key of the running job, and the daemons that hold its chunks.
struct LoadKey {
  struct Chunk {
    std::uint32_t daemon = 0;  // position in `daemons`
    std::uint64_t element_offset = 0;
    std::uint32_t element_count = 0;
  };
  v1::KeySpec spec;           // as added
  std::vector<Chunk> chunks;  // in order of offset; they tile the key
};
struct LoadedCheckpoint {
  std::uint64_t iteration = 0;
  std::uint32_t world_size = 0;  // the saved job's
  v1::LoadedState state;         // as GetLoadedState returns it to the other ranks
};
// keys: all keys of the job, [key index]. Reads and checks the whole checkpoint before it sends
// anything to a daemon. OK: every daemon has its part, and kLoad rounds install it. On an error no
// kLoad round may be pushed.
absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(std::span<const CheckpointDaemon> daemons,
                                                std::span<const LoadKey> keys,
                                                const std::string& directory,
                                                const TransferOptions& options);

}  // namespace phub::client
