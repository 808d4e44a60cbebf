// libphub: synchronous data-parallel training through a phub daemon.
//
//   auto session = phub::Connect("phub://rack7:7700");
//   auto job = session->Join({.job = "digits", .rank = rank, .world_size = 4});
//   auto fc1 = job->AddKey("fc1.weight", phub::f32, 64 * 128,
//                          phub::Momentum{.learning_rate = 0.1, .momentum = 0.9});
//   phub::Status status = job->Initialize(*fc1, initial);     // rank 0's values win
//   for (int step = 0; step < steps; ++step) {
//     Backward(batch, fc1->parameters(), fc1->gradients());   // phub's memory: nothing is copied
//     phub::Handle updated = fc1->PushPull();                 // returns at once
//     ...                                                     // the next layer's backward runs
//     status = updated.Wait();                                // fc1->parameters() are updated
//   }
//
// Terms. A job is one training run of world_size worker processes, each with a rank. A key is a
// tensor, or a bundle of several tensors laid end to end, with the optimizer that updates it. A
// round is one iteration of one key: every rank pushes a gradient, the daemon combines them in rank
// order, runs the optimizer, and sends every rank the same new parameters.
//
// Rules of a round.
// - Every rank pushes every key once per round, in any order of keys. All ranks must agree on the
//   kind of round (reduction or broadcast), its root and its hyper-parameters.
// - Between the push and the completion of its handle, the caller must not write the gradients and
//   must neither read nor write the parameters. A key has at most one round in flight; a second
//   push is refused with kFailedPrecondition.
// - Nothing blocks forever. When a worker or the daemon dies or stops responding, every handle and
//   every call completes within the daemon's liveness_timeout with an error that names it.
//
// Threads. Every function may be called from any thread. A call never copies or computes a tensor;
// one engine thread per job moves the bytes. Destroying a Session, Job, Key or Handle while another
// thread uses that same object is an error, as for any C++ object.
//
// Forks. A child process of a process that called Connect() cannot use phub: calls fail there with
// kFailedPrecondition. Destroying objects and exiting are safe there, and do not disturb the
// parent.
//
// Logs. Warnings and errors are written to standard error. The environment variable PHUB_LOG_LEVEL
// (debug, info, warning, error) changes the level; phub.h has functions that redirect the lines.
//
// Timelines. With the environment variable PHUB_TIMELINE=file, the process writes when each key was
// pushed and complete, for Perfetto (docs/timeline.md).
//
// Units. Counts are in elements, sizes in bytes, times in std::chrono types.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "phub/compression.h"
#include "phub/export.h"
#include "phub/handle.h"
#include "phub/job_options.h"
#include "phub/status.h"
#include "phub/types.h"

namespace phub {

namespace client {  // not part of the API
class JobImpl;
class SessionImpl;
struct JobAccess;
struct KeyImpl;
struct PoolRounds;
struct RoundAccess;
}  // namespace client

// Version of the library, for example "0.1.0". Static storage.
PHUB_API const char* Version();

// ---- Keys --------------------------------------------------------------------------------------

// Operation, movement, root, types, compression and `collective` must be the same on all ranks;
// other options may differ.
struct KeyOptions {
  Operation operation = Operation::kDefault;
  // Other movements than kAllReduce need a key without an optimizer, in a job of one rack with
  // apply=kChunk (or collective), whose element_count is a multiple of world_size. Those that move
  // bytes have no operation and no other wire types. Such keys have no Initialize() and no
  // Broadcast().
  Movement movement = Movement::kAllReduce;
  std::uint32_t root = 0;  // for kScatter and kGatherToOne: a rank
  // For collectives next to training: the key's rounds are outside iterations. They do not count in
  // Job::iteration(), are applied chunk by chunk also with apply=kIteration, and checkpoints do not
  // contain the key. It has no optimizer, may be added at any time, and may have any movement. Not
  // in jobs with restart=true; in jobs of several racks only in groups (group.h).
  bool collective = false;
  // A collective u8 key whose element_count is a capacity in bytes: each round states its own type,
  // operation and length (Key::AllReduce). A Pool (pool.h) has several, for as many rounds in
  // flight.
  bool pooled = false;
  // Element types of gradients() and parameters(), and on the wire. Unset: the key's type. An f32
  // key may use f16 or bf16; the daemon then keeps f32 masters.
  std::optional<ElementType> gradient_type = {};
  std::optional<ElementType> parameter_type = {};
  Compression compression = {};  // of gradients on the wire
  // Among waiting keys, those with a higher priority are sent first. Equal or unset: keys added
  // earlier, since the next forward pass needs them earlier; of collective keys, rounds in order.
  std::optional<std::int32_t> priority = {};
  // Before `priority`. Unset: that of the key's group, or kData.
  std::optional<PriorityClass> priority_class = {};
  // true: parameters() is private memory, which this worker may write between rounds. false: it may
  // be one region that all workers of the host map read-only, except without an optimizer.
  bool copy = false;
  // Memory for gradients() and parameters(), valid until this rank has left the job: element_count
  // elements of the types above, or one part where a rank has only its own (Key::gradients). Empty:
  // phub allocates zero-filled memory.
  Elements gradients = {};
  Elements parameters = {};
};

// A key to add. All ranks add the same keys in the same order. If name, type, count, operation,
// movement, compression or optimizer differ between ranks, the call fails and names the difference.
struct KeySpec {
  std::string name = {};  // 1 to 255 bytes, unique in the job
  ElementType type = f32;
  std::uint64_t element_count = 0;  // at least 1; may be 0 if `tensors` is given
  Optimizer optimizer = None{};
  KeyOptions options = {};
  // A bundle: element counts of its tensors, which are laid end to end. Empty: one tensor.
  std::vector<std::uint64_t> tensors = {};
};

// One tensor of a key: views of the key's memory.
struct Tensor {
  Elements gradients = {};
  ConstElements parameters = {};
};

// A key of a job. A cheap reference: copies refer to the same key. Keeps the key's memory alive.
// After the job failed or was left, pushes are refused, but the memory can still be read until the
// last copy of the Key is destroyed; shared memory occupies the host until then. After Leave()
// returned OK, parameters() are those of the last complete round, and nothing changes them any
// more. After a failure, parts of them may already be those of the round that did not complete.
class PHUB_API Key {
 public:
  ~Key();
  Key(const Key& other);
  Key& operator=(const Key& other);
  Key(Key&& other) noexcept;
  Key& operator=(Key&& other) noexcept;

  const std::string& name() const;
  std::uint64_t element_count() const;
  ElementType type() const;
  // Number of rounds that completed on this rank, including broadcasts.
  std::uint64_t iteration() const;

  // The key's memory: element_count elements each, of the types in KeyOptions. A rank that sends or
  // receives only one part has element_count / world_size elements there (gradients() of kGather,
  // parameters() of kReduceScatter), and a rank that sends or receives nothing has none
  // (gradients() of kScatter on other ranks than the root). The typed forms are empty if T is
  // another type.
  Elements gradients() const;
  ConstElements parameters() const;
  template <Element T>
  std::span<T> gradients() const {
    return gradients().template As<T>();
  }
  template <Element T>
  std::span<const T> parameters() const {
    return parameters().template As<T>();
  }
  // The same parameters, writable between rounds. Empty if they are shared with other workers (see
  // KeyOptions::copy).
  Elements mutable_parameters() const;
  // Tensors of a bundle, in order; other keys have one tensor. REQUIRES: i < tensor_count()
  std::size_t tensor_count() const;
  Tensor tensor(std::size_t i) const;

  // Starts a round: sends gradients(), receives the new parameters into parameters().
  [[nodiscard]] Handle PushPull();
  // The same with the caller's memory: as many elements as gradients() and parameters() have, of
  // the types in KeyOptions. They may not overlap, except that the result of an element may arrive
  // exactly where it is sent from: gradients and parameters of one type in the same memory, or a
  // rank's own part (kGather, kReduceScatter, kScatter). Copied only if a lane uses shared memory.
  // phub uses this memory until the handle is complete. After an error its contents are undefined.
  [[nodiscard]] Handle PushPull(ConstElements gradients, Elements parameters);
  // Apply::kIteration: like PushPull(), but requests that the iteration be skipped, for example
  // because this rank's loss is NaN. A request by one rank for one key is enough.
  [[nodiscard]] Handle PushPullToSkip();
  // Pooled keys only, which have no other rounds. Reduces gradients.count elements of any type into
  // as many `parameters`, which are the same memory or do not overlap. `sequence` numbers the
  // caller's operations, with 24 bits, above which are 8 bits for the number of rounds of the
  // operation that follow. Ranks that differ in type, operation, count or sequence end the job with
  // an error that names both.
  [[nodiscard]] Handle AllReduce(ConstElements gradients, Elements parameters, Operation operation,
                                 std::uint32_t sequence);
  // Starts a round like PushPull(), for callers that wait for the parameters later with Pull().
  Handle Push();
  Handle Push(ConstElements gradients);  // the new parameters arrive in parameters()
  // The handle of the last push, complete when its parameters have arrived. Its status is
  // kFailedPrecondition if nothing was pushed.
  [[nodiscard]] Handle Pull() const;

  // Sets the hyper-parameters from the next push on. Every rank sets the same values before the
  // same round. kInvalidArgument: another kind of optimizer than the key's, or a value is invalid.
  Status SetHyperParameters(const Optimizer& values);

 private:
  friend class Job;
  friend struct client::RoundAccess;
  explicit Key(std::shared_ptr<client::KeyImpl> state);
  std::shared_ptr<client::KeyImpl> impl_;
};

// ---- Sessions and jobs -------------------------------------------------------------------------

class Group;  // phub/group.h
// A worker's membership in a job. The destructor leaves the job, like Leave().
class PHUB_API Job {
 public:
  ~Job();
  Job(Job&& other) noexcept;
  Job& operator=(Job&& other) noexcept;

  const std::string& name() const;
  std::uint32_t rank() const;
  std::uint32_t world_size() const;
  bool created() const;  // this rank was the first to join and created the job
  // This process replaces one that died (JobOptions::restart). It makes the same AddKey() and
  // Initialize() calls as in a first run, receives the current values, and continues at
  // iteration().
  bool resumed() const;
  // Reductions that every key completed on this rank, except collective keys: the next iteration to
  // compute, from 0.
  std::uint64_t iteration() const;
  // Exact after a handle of the iteration is complete and before this rank pushes for the next one.
  // Skipped iterations count in Key::iteration() but not in iteration().
  IterationOutcome last_iteration() const;
  // Transports to the daemons when this rank joined, for example "shm", "tcp" or "shm,tcp".
  std::string transports() const;
  // OK while the job runs; afterwards its verdict.
  Status status() const;

  // Adds keys in one round trip. Every rank makes the same calls in the same order. Does not wait
  // for other ranks. If it fails, no key is added.
  Result<Key> AddKey(std::string_view name, ElementType type, std::uint64_t element_count,
                     const Optimizer& optimizer, const KeyOptions& options = {});
  Result<Key> AddBundle(std::string_view name, ElementType type,
                        std::span<const std::uint64_t> tensors, const Optimizer& optimizer,
                        const KeyOptions& options = {});
  Result<std::vector<Key>> AddKeys(std::span<const KeySpec> specs);
  // Gives back what the job holds for collective keys: memory, quota and names. Every rank makes
  // the same calls of AddKeys() and RemoveKeys() in the same order. Blocks until every rank has
  // called it. The keys must be those of one or more of the last calls of AddKeys() that are not
  // removed yet, without a round in flight; no round of another key may use their memory.
  // Not over RDMA. Without keys it waits for nobody and only says whether this rank can remove any:
  // kFailedPrecondition if not. If it returns an error and the job still runs, the keys can be used
  // as before; kCancelled: another thread called Leave(). Afterwards rounds of the keys are
  // refused. Memory that this rank shares with the daemon stays mapped, and charged to the tenant,
  // until the last copy of the Key is destroyed.
  Status RemoveKeys(std::span<const Key> keys);
  // Ranks with keys of their own (phub/group.h). NewGroups: several, returns those of this rank.
  Result<Group> NewGroup(std::string_view name, std::span<const std::uint32_t> ranks,
                         PriorityClass priority_class = PriorityClass::kData);
  Result<std::vector<Group>> NewGroups(std::span<const struct GroupSpec> groups);

  // Sets parameters() on every rank to rank 0's values, in one round; blocks until they arrive.
  // values: element_count elements of the key's type on rank 0; ignored on other ranks and may be
  // empty there. Does nothing on a resumed rank and after LoadCheckpoint(): the key has its values.
  Status Initialize(Key& key, ConstElements values);
  // A round that sends every rank the values of rank `root`: elements of the key's type, or empty
  // for the root's parameters(). Other ranks' values are not read, but must be empty if the root's
  // are, and not empty otherwise.
  [[nodiscard]] Handle Broadcast(Key& key, std::uint32_t root, ConstElements values = {});

  // Blocks until every rank has called it as often as this rank.
  Status Barrier();
  // Why a Barrier() or LoadCheckpoint() of this rank blocks, for another thread. DEADLINE_EXCEEDED:
  // it waits for the ranks that the text names, with the cycle if ranks wait for each other. OK: it
  // waits for no rank, or the daemon did not answer within 2 s. The job's verdict if it has ended.
  Status ExplainBarrier() const;

  // Sets what the program adds when an administrator asks what this rank is doing. phub calls
  // `recorder` on a thread of its own, one call at a time, also while other threads wait in phub.
  // If it blocks, only its own part of the record is missing. It must not wait for this job, and
  // must not call SetRecorder() or Leave(). Null: no recorder. Returns after a call of the previous
  // recorder has ended, as Leave() does.
  Status SetRecorder(Recorder recorder);

  // Saves a checkpoint into a directory of this host, at an iteration boundary, while training
  // continues: parameters, masters, optimizer state and hyper-parameters of all keys. A checkpoint
  // already there is replaced after the new one is safe on disk. One rank calls it. Returns the
  // saved iteration, which is this rank's last completed one if it has no round in flight.
  Result<std::uint64_t> SaveCheckpoint(std::string_view directory, CheckpointOptions options = {});
  // Loads a checkpoint from a directory of rank 0's host (`directory` is ignored on other ranks).
  // Blocks. Every rank calls it, after adding the same keys and with no round in flight. Afterwards
  // every rank has the saved parameters and hyper-parameters. Returns the saved iteration. If the
  // checkpoint is damaged or has other keys, every rank gets the reason. Equal options everywhere.
  Result<std::uint64_t> LoadCheckpoint(std::string_view directory, CheckpointOptions options = {});
  // Names of earlier versions for the same calls; a later version will not have them.
  Result<std::uint64_t> SaveState(std::string_view directory) { return SaveCheckpoint(directory); }
  Result<std::uint64_t> LoadState(std::string_view directory) { return LoadCheckpoint(directory); }

  // Waits for rounds in flight (at most leave_timeout; then kDeadlineExceeded names those that did
  // not complete), leaves the job, and stops the engine. Later calls are refused, except Leave().
  // While the daemon's control plane cannot be reached but its lanes are open, waits up to 2
  // minutes for it.
  Status Leave();

 private:
  friend class Session;
  friend struct client::JobAccess;
  explicit Job(std::shared_ptr<client::JobImpl> state);
  std::shared_ptr<client::JobImpl> impl_;
};

// TLS to the daemon: paths of PEM files. TLS is used if any member is set.
struct TlsOptions {
  std::string ca_file = {};      // authority that issued the daemon's certificate
  std::string certificate = {};  // this worker's certificate
  std::string key = {};          // its private key, readable only by its owner (mode 0600)
  std::string server_name = {};  // name in the daemon's certificate; empty: the endpoint's host
};

struct ConnectOptions {
  // Empty: the tenant of the token or certificate, or "default" if the daemon has no identities.
  std::string tenant = {};
  // Path of a token file, readable only by its owner (mode 0600). Read at every call: replace the
  // file to renew the token. Empty: the environment variable PHUB_TOKEN_FILE, if set.
  std::string token_file = {};
  // Empty members: the environment variables PHUB_CA_FILE, PHUB_CERTIFICATE, PHUB_KEY and
  // PHUB_SERVER_NAME, if set.
  TlsOptions tls = {};
  // Send the token to another host without TLS: anyone on the network path can then read it.
  bool plaintext_token = false;
  // Deadline of Connect().
  std::chrono::milliseconds connect_timeout{10'000};
  // Deadline of every other call to the daemon, except barriers, which end with the job. Once a job
  // is joined, its calls are repeated while the control plane cannot be reached or is too busy, as
  // long as the job runs.
  std::chrono::milliseconds call_timeout{30'000};
};

// A connection to a daemon's control plane. May be destroyed while its jobs continue.
class PHUB_API Session {
 public:
  ~Session();
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;

  // Joins the named job. The first rank to join creates it; ranks may join in any order. Does not
  // wait for other ranks. kAlreadyExists: a live worker holds the rank. kInvalidArgument: the ranks
  // disagree on an option; the message names the option, both ranks and their values.
  Result<Job> Join(const JobOptions& options);

 private:
  friend PHUB_API Result<Session> Connect(std::string_view endpoint, const ConnectOptions& options);
  explicit Session(std::shared_ptr<client::SessionImpl> state);
  std::shared_ptr<client::SessionImpl> impl_;
};

// endpoint: "phub://host:port" or "host:port". kUnavailable: no connection within connect_timeout;
// the message has the cause. Causes that waiting cannot change, such as a certificate for another
// name, are returned at once. A port that refuses connections is tried until connect_timeout, since
// phubd may be starting.
PHUB_API Result<Session> Connect(std::string_view endpoint, const ConnectOptions& options = {});

}  // namespace phub
