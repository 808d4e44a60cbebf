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
//     status = updated.Wait();                                // fc1->parameters() are the new ones
//   }
//
// Words. A job is one training run; world_size worker processes take part, each with a rank. A key
// is a tensor (or several, laid end to end: a bundle) with the optimizer that updates it. A round
// is one iteration of one key: every rank pushes a gradient, the daemon combines them in rank
// order, runs the optimizer, and sends every rank the same new parameters.
//
// Rules of a round.
// - Every rank pushes every key once per round, in any order among keys. All ranks must agree on
//   what a round is (a reduction or a broadcast, its root, the hyper-parameters).
// - From the push until its handle is complete the gradients must not be written, and the
//   parameters neither read nor written: they are lent to phub. There is one round per key in
//   flight; a second push is refused with kFailedPrecondition.
// - Nothing waits for ever. When a worker or the daemon dies or falls silent, every handle and
//   every call completes within the daemon's liveness_timeout with an error that names it.
//
// Threads. Every function may be called from any thread. A call never copies or computes a tensor;
// one engine thread per job moves the bytes. Destroying a Session, Job, Key or Handle while another
// thread uses that same object is an error, as for any C++ object.
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

#include "phub/export.h"
#include "phub/status.h"
#include "phub/types.h"

namespace phub {

namespace client {  // not part of the API
class JobImpl;
class SessionImpl;
struct JobAccess;
struct KeyImpl;
}  // namespace client

// Version of the library in use, "0.1.0". Static storage.
PHUB_API const char* Version();

// ---- What a key is -----------------------------------------------------------------------------

// Operation and the types must be equal at all ranks; the rest is this rank's own business.
struct KeyOptions {
  Operation operation = Operation::kDefault;
  // Types on the wire, of gradients() and of parameters(). Unset: the key's. Over an f32 key, which
  // the daemon then keeps as f32 masters, they may be f16 or bf16.
  std::optional<ElementType> gradient_type = {};
  std::optional<ElementType> parameter_type = {};
  // Keys with a higher priority are sent first when several are waiting. Unset: the key added
  // first has the highest, since the next forward pass needs it first.
  std::optional<std::int32_t> priority = {};
  // parameters() is memory of this worker alone, which it may write to between rounds. Else it may
  // be one region that all workers of the host map read-only. Keys without an optimizer always
  // have memory of their own.
  bool copy = false;
  // Memory of element_count elements of the wire types that stays valid until the job was left,
  // used for gradients() and parameters(). Empty: phub allocates (zero-filled).
  Elements gradients = {};
  Elements parameters = {};
};

// A key to be added. All ranks add the same keys in the same order; name, type, element_count,
// operation and optimizer must agree, or the ranks are refused with what differs.
struct KeySpec {
  std::string name = {};  // 1 to 255 bytes, unique in the job
  ElementType type = f32;
  std::uint64_t element_count = 0;  // at least 1; may be 0 if `tensors` is given
  Optimizer optimizer = None{};
  KeyOptions options = {};
  // A bundle: element counts of the tensors that lie end to end in the key. Empty: one tensor.
  std::vector<std::uint64_t> tensors = {};
};

// ---- A round under way -------------------------------------------------------------------------

// A push that was started. Cheap: steady state allocates nothing. Dropping a handle changes
// nothing about the round. May outlive its Job.
class PHUB_API Handle {
 public:
  Handle();  // complete, with an error
  ~Handle();
  Handle(Handle&& other) noexcept;
  Handle& operator=(Handle&& other) noexcept;
  Handle(const Handle& other);
  Handle& operator=(const Handle& other);

  // Until the round is complete: OK when the new parameters have arrived whole; kCancelled;
  // kFailedPrecondition and kInvalidArgument when the push was refused at once; kAborted or
  // kUnavailable with the job's verdict ("rank 2 on node5 died 1.3 s ago (job digits, key ...)").
  Status Wait() const;
  // The same, or kDeadlineExceeded when the time is up: the round goes on and can be waited for.
  Status Wait(std::chrono::nanoseconds timeout) const;
  // True if Wait() would return at once.
  bool Test() const;
  // Withdraws the push if nothing of it was sent yet (it then never happened, and the key may be
  // pushed again); kFailedPrecondition if it is under way or complete.
  Status Cancel() const;

 private:
  friend class Key;
  friend class Job;
  explicit Handle(Status refused);
  Handle(std::shared_ptr<client::KeyImpl> key, std::uint64_t ticket);

  std::shared_ptr<client::KeyImpl> key_;
  std::uint64_t ticket_ = 0;
  Status refused_;
};

// One tensor of a key: views of the key's memory.
struct Tensor {
  Elements gradients = {};
  ConstElements parameters = {};
};

// A key of a job. A cheap reference: copies name the same key. Keeps the key's memory alive; after
// its job was left or failed, pushes are refused and the memory can still be read.
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
  // Rounds complete on this rank, broadcasts included.
  std::uint64_t iteration() const;

  // The key's own memory, element_count elements each (see KeyOptions), as elements of the wire
  // types. The typed forms are empty if T is another type.
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
  // The same parameters to write to, between rounds; empty if they are shared with other workers
  // (see KeyOptions::copy).
  Elements mutable_parameters() const;
  // Tensors of a bundle, in order; a key that is not a bundle has one. REQUIRES: i < tensor_count()
  std::size_t tensor_count() const;
  Tensor tensor(std::size_t i) const;

  // Starts a round: sends gradients(), receives the new parameters into parameters().
  [[nodiscard]] Handle PushPull();
  // The same with other memory, element_count elements of the wire types each, which may not
  // overlap: sent from and received into where it lies, with no copy but into and out of shared
  // memory. Lent until the handle is complete.
  [[nodiscard]] Handle PushPull(ConstElements gradients, Elements parameters);
  // Apply::kIteration: like PushPull(), and asks that the iteration change nothing, for instance
  // because this rank's loss was no number. One rank that asks so at one key is enough.
  [[nodiscard]] Handle PushPullToSkip();
  // Starts a round like PushPull(), for callers that collect the parameters later with Pull().
  Handle Push();
  Handle Push(ConstElements gradients);  // received into parameters()
  // The handle of the last push: complete when its parameters are there. kFailedPrecondition if
  // nothing was pushed.
  [[nodiscard]] Handle Pull() const;

  // Hyper-parameters from the next push on. Every rank sets the same values before the same round.
  // kInvalidArgument if the kind of optimizer is not the key's, or a value is out of range.
  Status SetHyperParameters(const Optimizer& values);

 private:
  friend class Job;
  explicit Key(std::shared_ptr<client::KeyImpl> state);
  std::shared_ptr<client::KeyImpl> impl_;
};

// ---- Sessions and jobs -------------------------------------------------------------------------

// What becomes of a job that loses a worker.
enum class LossPolicy : std::uint8_t {
  kFail = 0,  // it ends; everybody is told who was lost
  kWait = 1,  // it waits for up to wait_timeout. A worker whose process lives comes back by itself
};

// What the daemon does when a sum of gradients is not finite: some rank pushed NaN or infinity, or
// the sum overflowed (in the accumulation type: f32 for f16, bf16 and f32). Bits of sums never
// depend on it, and it costs next to nothing. Rounds of Initialize and broadcasts are not screened;
// of minima, an infinity that is not the least is not seen, and so of maxima.
enum class Screening : std::uint8_t {
  kOff = 0,     // nobody looks
  kReport = 1,  // counted (phubctl job get), and the first one logged with its rank and key
  kReject = 2,  // the job ends, and the error names rank and key. What was applied stays applied:
                // go on from a saved state
};

// Which way gradients and parameters travel. The choice is logged with its reason.
enum class TransportChoice : std::uint8_t {
  kAuto = 0,  // shared memory with a daemon on the same host, else verbs if both have it, else tcp
  kTcp = 1,
  kSharedMemory = 2,  // or fail
  kVerbs = 3,         // RDMA, or fail
};

// When new parameters are made.
enum class Apply : std::uint8_t {
  kChunk = 0,      // of each chunk, as soon as every rank has pushed it
  kIteration = 1,  // of all keys, once every chunk of every key is summed, on every core loop and
                   // daemon. Until then nothing changes, so that an iteration can be clipped by its
                   // norm, or skipped. Every rank pushes every key once per iteration before it
                   // waits for any; keys are added between iterations.
};

struct JobOptions {
  std::string job = {};  // name of the job: 1 to 255 bytes
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Bytes of a chunk, the unit of sending and summing; a multiple of 64. 0: the daemon's default.
  std::uint32_t chunk_bytes = 0;
  // Bytes of the daemon's staging memory per worker and core loop. 0: the daemon's default.
  std::uint32_t staging_bytes = 0;
  LossPolicy on_loss = LossPolicy::kFail;
  std::chrono::milliseconds wait_timeout{60'000};  // kWait
  // With kWait: a worker that died may be started anew. The daemon keeps two versions of all
  // parameters, so that the new process computes the iteration under way again and the job ends
  // with the same bits as without the crash. Every key is pushed once per iteration, keys are added
  // between iterations, and no push of an iteration is sent before all replies of the last one.
  bool restart = false;
  Screening screening = Screening::kReport;
  // kIteration: not with `restart` or `plan`. Costs a message per chunk and rank, a second pass
  // over every sum, and a round trip between an iteration's last sum and its first new parameters.
  Apply apply = Apply::kChunk;
  // kIteration, 0: no clipping. The combined gradients of all keys with an optimizer, means already
  // divided, are multiplied by clip_norm / norm if their 2-norm is greater; before clip_value. The
  // norm's bits depend on chunk_bytes, on nothing else of how the job runs. Where it is not finite
  // nothing is clipped. Every rank states the same.
  double clip_norm = 0.0;
  // kIteration: an iteration that has NaN or infinity in any sum, or with clip_norm whose norm
  // overflows, is skipped. Every rank states the same.
  bool skip_nonfinite = false;
  TransportChoice transport = TransportChoice::kAuto;
  // Not empty: the job spans all racks that the daemons are configured with. Each rank connects to
  // its own rack's daemon; with R racks the first world_size / R ranks are rack 0's, the next rack
  // 1's, and so on. How racks exchange: "auto", the name of a planner (`phubctl plan compare`), or
  // the path of a plan's file (with a '/' or ending in ".json"). Every rank states the same.
  std::string plan = {};
  // How long Leave() and the destructor let rounds under way complete before they leave.
  std::chrono::milliseconds leave_timeout{5'000};
};

// What became of iterations (Apply::kIteration). A skipped one leaves parameters, optimizer state
// and its step count as they were, bit for bit; its handles complete with OK all the same.
struct IterationOutcome {
  std::uint64_t decided = 0;  // iterations that were applied or skipped
  std::uint64_t skipped = 0;  // of those
  // Of the last one:
  bool last_skipped = false;
  double norm = 0.0;   // of its gradients before clipping; only with clip_norm
  double scale = 1.0;  // what they were multiplied by
};

// A worker's place in a job. Destroying it leaves in order.
class PHUB_API Job {
 public:
  ~Job();
  Job(Job&& other) noexcept;
  Job& operator=(Job&& other) noexcept;

  const std::string& name() const;
  std::uint32_t rank() const;
  std::uint32_t world_size() const;
  bool created() const;  // this rank was the first to come
  // This process took the place of one that died (JobOptions::restart). The same calls of AddKey
  // and Initialize as in a first run give it the keys as they are; then it goes on at iteration().
  bool resumed() const;
  // Reductions that are complete on this rank for every key: the iteration to compute next, from 0.
  std::uint64_t iteration() const;
  // Exact once a handle of the iteration is complete, until this rank pushes for the next. Skipped
  // iterations do not count for iteration(), but for Key::iteration().
  IterationOutcome last_iteration() const;
  // How the daemons were reached when this rank joined: "shm", "tcp" or "shm,tcp".
  std::string transports() const;
  // OK while the job runs; else its verdict.
  Status status() const;

  // Adds keys, all in one round trip. Collective in the sense that every rank makes the same calls
  // in the same order; does not wait for the others. On an error none was added.
  Result<Key> AddKey(std::string_view name, ElementType type, std::uint64_t element_count,
                     const Optimizer& optimizer, const KeyOptions& options = {});
  Result<Key> AddBundle(std::string_view name, ElementType type,
                        std::span<const std::uint64_t> tensors, const Optimizer& optimizer,
                        const KeyOptions& options = {});
  Result<std::vector<Key>> AddKeys(std::span<const KeySpec> specs);

  // A round that gives every rank rank 0's values in parameters(); blocks until they are there.
  // values: element_count elements of the key's type on rank 0; ignored, and may be empty, on
  // others. At a resumed rank, and after LoadCheckpoint(): nothing happens, the key has its values.
  Status Initialize(Key& key, ConstElements values);
  // A round that gives every rank the values of rank `root`: elements of the key's type, or empty
  // for the root's parameters(). Not read at the others, which say by `count` if there are any.
  [[nodiscard]] Handle Broadcast(Key& key, std::uint32_t root, ConstElements values = {});

  // Until every rank has called it as often as this one.
  Status Barrier();

  // Saves parameters, masters, optimizer state and hyper-parameters of all keys at an iteration
  // boundary, while training goes on, into a directory of this host (see docs/checkpoints.md): an
  // older state there is replaced once the new one is safe on disk. Any one rank calls it. Returns
  // the iteration that was saved; the one that this rank has completed if it has no round under
  // way.
  Result<std::uint64_t> SaveCheckpoint(std::string_view directory);
  // Gives the job the state that was saved in a directory of rank 0's host (ignored at the others).
  // Collective, blocks: every rank calls it, after the same keys were added and with no round under
  // way. Parameters and hyper-parameters are then the saved ones at every rank. Returns the saved
  // iteration. A state that is damaged or of other keys is refused with the reason, at every rank.
  Result<std::uint64_t> LoadCheckpoint(std::string_view directory);

  // Lets rounds under way complete (at most leave_timeout, then kDeadlineExceeded says which did
  // not), leaves, and ends the engine. Calls after it are refused. Leaving twice is harmless.
  Status Leave();

 private:
  friend class Session;
  friend struct client::JobAccess;
  explicit Job(std::shared_ptr<client::JobImpl> state);
  std::shared_ptr<client::JobImpl> impl_;
};

// How a daemon is reached over TLS: paths of PEM files. TLS is used if any is given.
struct TlsOptions {
  std::string ca_file = {};  // whose certificate the daemon must show
  std::string certificate =
      {};  // this worker's own, and its key, which nobody else may read (0600)
  std::string key = {};
  std::string server_name = {};  // as the daemon's certificate names it; empty: the endpoint's host
};

struct ConnectOptions {
  // Empty: the one that the token or certificate is of; "default" at a daemon without identities.
  std::string tenant = {};
  // Path of a file with a token, which nobody else may read (0600). Read again at every call: to
  // renew a token, replace the file. Empty: the environment's PHUB_TOKEN_FILE, if it is set.
  std::string token_file = {};
  // Members that are empty: the environment's PHUB_CA_FILE, PHUB_CERTIFICATE, PHUB_KEY,
  // PHUB_SERVER_NAME, those that are set.
  TlsOptions tls = {};
  // Send the token to another host without TLS: whoever listens on the way has it then.
  bool plaintext_token = false;
  // How long Connect() may take.
  std::chrono::milliseconds connect_timeout{10'000};
  // Deadline of every other call to the daemon, barriers excepted (those end with the job).
  std::chrono::milliseconds call_timeout{30'000};
};

// A connection to a daemon's control plane. May be destroyed while its jobs go on.
class PHUB_API Session {
 public:
  ~Session();
  Session(Session&& other) noexcept;
  Session& operator=(Session&& other) noexcept;

  // Joins the job of that name, creating it if this rank is the first to come; any start order.
  // kAlreadyExists: a live worker holds the rank. kInvalidArgument: the ranks disagree on an
  // option; the message names both and what differs. Does not wait for the other ranks.
  Result<Job> Join(const JobOptions& options);

 private:
  friend PHUB_API Result<Session> Connect(std::string_view endpoint, const ConnectOptions& options);
  explicit Session(std::shared_ptr<client::SessionImpl> state);
  std::shared_ptr<client::SessionImpl> impl_;
};

// endpoint: "phub://host:port" or "host:port". kUnavailable if nothing answers there in time.
PHUB_API Result<Session> Connect(std::string_view endpoint, const ConnectOptions& options = {});

}  // namespace phub
