// What control holds while it asks core loops for versions, takes a job's state out, or brings
// saved state in, and what it knows of state that is on disk. Data with invariants, part of a Job;
// the rules are in versions.h, snapshots.h and loads.h.
//
// Memory. Images are charged to the job. A core loop refers to an image from the command that names
// it until a later one (kDropSnapshot, another kLoadCheckpoint) is acknowledged, or kJobEnded:
// until then an image is kept here, whoever has lost interest.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/control/answers.h"
#include "server/control/core_link.h"
#include "server/core/exchange/rack_plan.h"
#include "server/core/job_shard.h"

namespace phub::server {

struct Job;

// A question to every core loop for the versions of a job's keys.
struct VersionQuery {
  std::vector<std::unique_ptr<VersionReport>> reports;  // [core]
  std::vector<bool> answered;                           // [core]
  std::size_t answered_count = 0;
  TimeNs deadline = 0;
  // Once: complete or out of time (OK), or the job ended; then empty.
  std::function<void(const absl::Status&, VersionQuery&)> done;
  bool complete() const { return answered_count == reports.size(); }
};

// A chunk of a job: of `chunk` control reads only what it set itself before the core loop got it.
struct ChunkRef {
  CoreIndex core{};
  std::uint32_t index = 0;  // on that core
  const Chunk* chunk = nullptr;
  RackIndex home{};  // of jobs that span racks
};

// A tensor of saved state that a key has, and where a chunk's part of it lies in an image.
struct TensorView {
  v1::StateTensor tensor{};
  std::uint32_t element_bytes = 0;
  std::byte* data = nullptr;
};
// In the order of v1::StateTensor; null data is left out. Of one chunk of an image.
std::vector<TensorView> TensorsOf(const ShardKey& key, const CheckpointImage::ChunkImage& image);

struct SnapshotRun {
  enum class State : std::uint8_t {
    kAccepting,  // sent; not every core loop has taken it on, or its versions are not known
    kTaking,     // Begin was answered; chunks are copied, and may be read
    kDropping,   // nobody wants it any more; core loops are being told
  };
  State state = State::kAccepting;
  std::string id;
  TimeNs begun_at = 0;
  TimeNs deadline =
      0;  // kAccepting: for the core loops. kTaking: for the reader to come, or to read
  std::vector<std::unique_ptr<CheckpointImage>> images;  // [core]
  std::vector<Ticket> tickets;  // [core] of kTakeSnapshot, then kDropSnapshot
  bool acknowledged = false;    // seen before the core loops' events were taken: those are all here
  bool versions_known = false;
  std::vector<bool> taken;  // [core] every chunk is copied
  bool missed = false;
  std::uint64_t memory_bytes = 0;
  std::uint32_t key_count = 0;
  v1::Snapshot description;
  Answer<v1::Snapshot> begun;  // Begin's; empty once answered

  // Reading.
  std::shared_ptr<SnapshotSink> reader;
  bool reader_waits = false;  // it can take a part
  bool read = false;          // somebody was, or is
  bool keys_sent = false;
  std::vector<ChunkRef> chunks;    // all of this daemon's that are at home
  std::size_t chunk_next = 0;      // what is sent next: a chunk,
  std::size_t tensor_next = 0;     // a tensor of it,
  std::uint32_t element_next = 0;  // an element of that
  absl::Status end;                // kDropping: for whoever waits, once the memory is back
};

// A snapshot that was read to its end. Whether it is on disk its reader says later, or never.
struct ReadOut {
  std::string id;
  std::uint64_t iteration = 0;
  TimeNs begun_at = 0;
};

// The newest state on disk that control was told of.
struct NewestSave {
  v1::SavedState state;
  TimeNs at = 0;  // its snapshot was begun, or it was loaded; 0: there is none
};
void NoteReadOut(Job& job);  // the job's snapshot is
// As it is told to others now; nothing if there is none.
std::optional<v1::SavedState> DescribeNewestSave(const Job& job, TimeNs now);
// A peer says so: printable, and short.
v1::SavedState SaveAt(std::uint64_t iteration, const std::string& directory,
                      const std::string& host);
// Tells every rank, unless something newer is known.
void NoteSave(Job& job, const v1::SavedState& state, TimeNs at, TimeNs now);

// Saved state as the core loops get it.
struct DeliveredCheckpoint {
  std::vector<std::unique_ptr<CheckpointImage>> images;  // [core]
  std::vector<Ticket> tickets;  // [core]: of the command after which it is used, or,
                                // when replaced, not used any more
  std::uint64_t memory_bytes = 0;
  v1::LoadedState description;
  // What it changed of the keys that it names: index, first iteration.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> iterations_before;
};

// Saved state on its way in.
struct CheckpointArrival {
  LoadId id = 0;
  Rank rank{};
  std::string session_id;   // empty: another rack's daemon brings it
  TimeNs deadline = 0;      // for the next part
  absl::Status failure;     // why it will not succeed; its memory is gone then
  bool is_refusal = false;  // instead: rank 0 says that it could not load
  std::unique_ptr<DeliveredCheckpoint> state;
  struct Part {
    ChunkRef place;
    std::vector<std::uint32_t> elements_come;  // [tensor of TensorsOf]
  };
  // A job that spans racks is brought whole to one of their daemons, which deals it out.
  std::vector<std::vector<ChunkRef>> dealt;                 // [key], by offset; empty: nothing is
  std::map<std::uint32_t, v1::LoadStateRequest> for_racks;  // by rack: what is to go there next
  std::vector<bool> named;                                  // [key]
  std::vector<std::vector<Part>> parts;                     // [key], by offset
  std::uint64_t elements_left = 0;  // of all tensors of the keys that are named
};

// All of a job.
struct JobCheckpoints {
  std::list<VersionQuery> version_queries;
  std::unique_ptr<SnapshotRun> snapshot;       // null: none is being taken
  std::unique_ptr<CheckpointArrival> arrival;  // saved state that is coming in
  std::unique_ptr<DeliveredCheckpoint> loaded;  // what the core loops have, or are given
  std::vector<std::unique_ptr<DeliveredCheckpoint>> replaced;  // until the core loops let go
  absl::Status load_refusal;  // why rank 0 could not load, since the last state that was brought
  std::uint64_t newest_load = 0;  // racks: the highest number of a load or a refusal
  std::deque<ReadOut> read_outs;  // that nobody has reported yet: the newest few
  NewestSave newest_save;
};

}  // namespace phub::server
