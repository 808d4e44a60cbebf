// What control keeps while it queries core loops for versions, takes a snapshot of a job or loads a
// checkpoint into it. Also what control knows of checkpoints on disk. Data with invariants, part of
// a Job; the rules are in versions.h, snapshots.h and loads.h.
//
// Memory. Images are charged to the job. A core loop refers to an image from the command that names
// it until it acknowledges a later command (kDropSnapshot, another kLoadCheckpoint) or kJobEnded.
// The image is kept until then, even if no client needs it any more.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/control/answers.h"
#include "server/control/core_link.h"
#include "server/control/jobs/key_table.h"
#include "server/control/jobs/prefaulter.h"
#include "server/core/exchange/rack_plan.h"
#include "server/core/job_shard.h"

namespace phub::server {

struct Context;
struct Job;

// A query to every core loop for the versions of a job's keys.
struct VersionQuery {
  std::vector<std::unique_ptr<VersionReport>> reports;  // [core]
  std::vector<bool> answered;                           // [core]
  std::size_t answered_count = 0;
  TimeNs deadline = 0;
  // Called once, then empty. OK: the query is complete or timed out. Otherwise the job ended.
  std::function<void(const absl::Status&, VersionQuery&)> done;
  bool complete() const { return answered_count == reports.size(); }
};

// A chunk of a job. Control reads only those fields of `chunk` that it set before it gave the chunk
// to the core loop.
struct ChunkRef {
  CoreIndex core{};
  std::uint32_t index = 0;  // on that core
  const Chunk* chunk = nullptr;
  RackIndex home{};  // set for jobs that span racks
};

// A tensor of a key's training state, and where a chunk's part of it is in an image.
struct TensorView {
  v1::StateTensor tensor{};
  std::uint32_t element_bytes = 0;
  std::byte* data = nullptr;
};
// Tensors of one chunk of an image, in the order of v1::StateTensor. Tensors without data are left
// out.
std::vector<TensorView> TensorsOf(const ShardKey& key, const CheckpointImage::ChunkImage& image);

// The batches of a job. It keeps them and what they refer to alive, so that other threads can read
// what control set before it gave them to the core loops.
struct ChunkSource {
  std::vector<std::vector<std::shared_ptr<const KeyBatch>>> batches;  // [core][batch]
  std::vector<std::shared_ptr<const void>> exchange;                  // jobs that span racks
};

// Copies of a job's training state, or memory for them.
struct Images {
  // [core]. Shared with the thread that prefaults and frees the pages.
  std::vector<std::shared_ptr<CheckpointImage>> of_cores;
  PagesFlag pages;          // null: they have pages
  std::uint64_t bytes = 0;  // charged to the job
  PrefaultState state() const { return pages == nullptr ? PrefaultState::kTaken : pages->load(); }
};
struct FreeingImages {
  DoneFlag done;  // null: free already
  std::uint64_t bytes = 0;
  std::function<void()> freed;  // called once; may be empty
};

// A key at its target.
struct KeyAtTarget {
  std::uint64_t first_iteration = 0;
  std::uint64_t reductions = 0;
  std::uint64_t applied = 0;
  bool is_here = false;  // this daemon has chunks of it, and the values above are theirs
  wire::HyperParameters hyper_parameters = {};
};

// What a snapshot knows of every key and chunk. Work on all of them is done by another thread,
// which has the contents for itself then: while they are mapped, while the versions are not known,
// and when everything is copied.
struct SnapshotContents {
  ChunkSource source;
  KeyTable job_keys;                                     // when it began
  std::vector<std::uint64_t> targets;                    // [key]: reductions
  std::vector<std::shared_ptr<CheckpointImage>> images;  // [core]; until they are admitted
  std::vector<KeyAtTarget> keys;                         // [key]
  google::protobuf::RepeatedPtrField<v1::SnapshotKey>
      described;                 // for clients that get all at once
  std::vector<ChunkRef> chunks;  // all chunks whose home is this daemon
  std::uint64_t bytes = 0;       // all tensors together
  std::uint64_t iteration = 0;   // once everything is copied: its iteration
};

struct SnapshotRun {
  enum class State : std::uint8_t {
    kMapping,    // waits for its images and their pages; the core loops do not know of it yet
    kAccepting,  // sent; some core loop has not accepted it, or versions are not known
    kTaking,     // Begin was answered; chunks are being copied and can be read
    kDropping,   // given up; control waits for the core loops to release it
    kFreeing,    // its images are being freed
  };
  State state = State::kMapping;
  bool over() const { return state == State::kDropping || state == State::kFreeing; }
  std::string id;
  std::string saver;  // BeginSnapshotRequest.saver
  TimeNs begun_at = 0;
  // kAccepting: for the core loops to accept. kTaking: for the reader to connect or to read on.
  TimeNs deadline = 0;
  bool mapped = false;  // the contents and images are complete
  Images images;
  std::vector<Ticket> tickets;  // [core] for kTakeSnapshot, then kDropSnapshot
  // Every core loop has acknowledged the command. Control checks this before it handles the core
  // loops' events, so all events that precede the acknowledgement are handled.
  bool acknowledged = false;
  bool versions_known = false;
  std::vector<bool> taken;  // [core]: every chunk is copied
  bool missed = false;
  std::shared_ptr<SnapshotContents> contents = std::make_shared<SnapshotContents>();
  v1::Snapshot description;       // without the keys
  bool begins_with_keys = false;  // the answer to Begin has the keys
  Answer<v1::Snapshot> begun;     // the answer to Begin; empty once given

  // Reading.
  std::shared_ptr<SnapshotSink> reader;
  bool reader_waits = false;   // ready for the next part
  bool read = false;           // a client has read it or is reading it
  bool describing = false;     // every chunk is copied; another thread puts that in the contents
  bool copied = false;         // it has
  bool keys_in_parts = false;  // ReadSnapshotRequest
  std::size_t key_next = 0;    // the keys before it were sent
  bool keys_sent() const { return key_next == contents->keys.size(); }
  std::size_t chunk_next = 0;      // what is sent next: this chunk,
  std::size_t tensor_next = 0;     // this tensor of the chunk,
  std::uint32_t element_next = 0;  // this element of the tensor
  absl::Status end;  // kDropping: the answer for waiting clients once the memory is freed
};

// A snapshot that was read completely. The reader may report later that it is on disk.
struct ReadOut {
  std::string id;
  std::uint64_t iteration = 0;
  TimeNs begun_at = 0;
};

// The newest checkpoint on disk that control knows of.
struct NewestSave {
  v1::SavedState state;
  TimeNs at = 0;  // when its snapshot began or it was loaded; 0: none
};
// Describes a key for the reader.
v1::SnapshotKey DescribeAtTarget(const SnapshotContents& contents, std::uint32_t key);
void NoteReadOut(Job& job);  // the job's snapshot was read completely
// The newest checkpoint with its age as of `now`; nullopt if the job has none.
std::optional<v1::SavedState> DescribeNewestSave(const Job& job, TimeNs now);
// For values from a peer: makes the text printable and limits its length.
v1::SavedState SaveAt(std::uint64_t iteration, const std::string& directory,
                      const std::string& host);
// Notifies every rank, unless a newer checkpoint is known.
void NoteSave(Context& context, Job& job, const v1::SavedState& state, TimeNs at, TimeNs now);

// A checkpoint as it is given to the core loops.
struct DeliveredCheckpoint {
  Images images;
  // [core]: the command after which the core loop uses it or, once it is replaced, no longer uses
  // it.
  std::vector<Ticket> tickets;
  // Does not change once the checkpoint is complete, so other threads may copy it then.
  std::shared_ptr<v1::LoadedState> description = std::make_shared<v1::LoadedState>();
  // Key index and first iteration of every key that the load names: the checkpoint's, and once it
  // is complete, the job's before the load.
  std::vector<std::pair<std::uint32_t, std::uint64_t>> first_iterations;
};

// A checkpoint that is being loaded.
struct CheckpointArrival {
  LoadId id = 0;
  Rank rank{};
  std::string session_id;   // empty: another rack's daemon sends it
  TimeNs deadline = 0;      // for the next part to arrive
  absl::Status failure;     // why the load failed; its memory is freed then
  bool is_refusal = false;  // not a load: rank 0 reports that it could not load
  std::unique_ptr<DeliveredCheckpoint> state;
  bool mapped = false;           // the images are mapped
  bool accepts = false;          // they have pages, or the load has failed
  std::function<void()> resume;  // called once when `accepts` is set; may be empty
  bool began = false;            // the first part was taken; later ones may name further keys
  struct Part {
    ChunkRef place;
    std::uint8_t tensor_count = 0;
    std::array<std::uint32_t, 4> elements_come = {};  // received so far; [tensor of TensorsOf]
  };
  // For a job that spans racks, one daemon receives the whole checkpoint and distributes it.
  std::vector<std::vector<ChunkRef>> dealt;  // [key], by offset; empty: not distributed
  std::map<std::uint32_t, v1::LoadStateRequest> for_racks;  // by rack: what to send there next
  std::vector<bool> named;                                  // [key]
  std::vector<Part> parts;                                  // of this home, by key and offset
  std::vector<std::uint32_t> first_parts;                   // [key], and one more: their number
  std::span<Part> PartsOf(std::uint32_t key) {
    return std::span(parts).subspan(first_parts[key], first_parts[key + 1] - first_parts[key]);
  }
  std::uint64_t elements_left = 0;  // missing elements of all named keys' tensors
};

// Everything about one job's checkpoints.
struct JobCheckpoints {
  bool snapshot_maps = false;  // another thread maps the images of a snapshot that was begun
  std::list<VersionQuery> version_queries;
  std::unique_ptr<SnapshotRun> snapshot;        // null: no snapshot in progress
  std::unique_ptr<CheckpointArrival> arrival;   // the checkpoint that is being loaded
  std::unique_ptr<DeliveredCheckpoint> loaded;  // what the core loops use or will use
  // Kept until the core loops release them.
  std::vector<std::unique_ptr<DeliveredCheckpoint>> replaced;
  std::list<FreeingImages> freeing;  // nobody uses them; still charged to the job
  absl::Status load_refusal;      // why rank 0 could not load; cleared by the next successful load
  std::uint64_t newest_load = 0;  // jobs that span racks: the highest number of a load or refusal
  std::deque<ReadOut> read_outs;  // the newest few that were not reported yet
  NewestSave newest_save;
};

}  // namespace phub::server
