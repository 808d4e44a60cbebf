// The options with which a worker joins a job (Session::Join in client.h), and what a job reports.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace phub {

// How a job reacts to the loss of a worker.
enum class LossPolicy : std::uint8_t {
  kFail = 0,  // the job ends; every rank's error names the lost worker
  kWait = 1,  // the job waits up to wait_timeout. A worker that is still alive reconnects by itself
};

// How the daemon handles sums of gradients that are not finite: a rank pushed NaN or infinity, or
// the sum overflowed (in the accumulation type: f32 for f16, bf16 and f32). Screening never changes
// the bits of sums and costs almost nothing. Initialize() and broadcasts are not screened. For
// kMin and kMax, an infinity is detected only if it is the result.
enum class Screening : std::uint8_t {
  kOff = 0,     // sums are not examined
  kReport = 1,  // count them (phubctl job get); log the first one with its rank and key
  kReject = 2,  // the job ends with an error that names rank and key. Updates that were already
                // applied remain: load a checkpoint to continue
};

// The transport of gradients and parameters. The choice is logged with its reason.
enum class TransportChoice : std::uint8_t {
  kAuto = 0,  // shared memory if the daemon is on this host, otherwise verbs if possible, or tcp
  kTcp = 1,
  kSharedMemory = 2,  // fail if it is not possible
  kVerbs = 3,         // RDMA; fail if it is not possible
};

// When the daemon runs the optimizer.
enum class Apply : std::uint8_t {
  kChunk = 0,      // for each chunk as soon as every rank has pushed it
  kIteration = 1,  // for all keys after every chunk of every key is summed, on every core loop and
                   // daemon. An iteration can therefore be clipped by its norm, or skipped. In an
                   // iteration every rank pushes every key once before it waits for any. Keys are
                   // added between iterations only.
};

// How gradients of floating-point types are summed.
enum class Sum : std::uint8_t {
  kFloat = 0,  // as floating-point numbers, in rank order
  kFixed = 1,  // in fixed point: integers of 32 bits that share an exponent per block. The bits do
               // not depend on the order of addition. Meant for sums in the network, but this
               // version sums in the daemon. For f32, f16, bf16 and i32, sum and mean.
};

struct JobOptions {
  std::string job = {};  // name of the job: 1 to 255 bytes of printable UTF-8
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Bytes of a chunk, the unit of sending and summing; a multiple of 64. 0: the daemon's default.
  std::uint32_t chunk_bytes = 0;
  // Bytes of the daemon's staging memory per worker and core loop. 0: the daemon's default.
  std::uint32_t staging_bytes = 0;
  LossPolicy on_loss = LossPolicy::kFail;
  std::chrono::milliseconds wait_timeout{60'000};  // for kWait
  // With kWait: a worker that died may be restarted. The daemon keeps two versions of all
  // parameters. The new process computes the current iteration again, and the job ends with the
  // same bits as without the crash. Every key is pushed once per iteration, keys are added between
  // iterations only, and pushes of an iteration wait for all replies of the previous one.
  bool restart = false;
  Screening screening = Screening::kReport;
  // kIteration excludes `restart` and `plan`. It costs a message per chunk and rank, a second pass
  // over every sum, and a round trip between an iteration's last sum and its first new parameters.
  Apply apply = Apply::kChunk;
  // For kIteration; 0: no clipping. If the 2-norm of the combined gradients of all keys with an
  // optimizer (means after the division) exceeds clip_norm, they are multiplied by clip_norm /
  // norm, before clip_value applies. The norm's bits depend on chunk_bytes but not on timing or
  // placement. A norm that is not finite clips nothing. Same on every rank.
  double clip_norm = 0.0;
  // For kIteration: skip an iteration if any sum has NaN or infinity or, with clip_norm, if the
  // norm overflows. Same on every rank.
  bool skip_nonfinite = false;
  TransportChoice transport = TransportChoice::kAuto;
  // If not empty, the job spans all racks in the daemons' configuration. Each rank connects to a
  // daemon of its own rack: with R racks the first world_size / R ranks belong to rack 0, the next
  // to rack 1, and so on. The value says how racks exchange: "auto", a planner's name (see `phubctl
  // plan compare`), or the path of a plan file (with a '/' or ending in ".json"). Same on all
  // ranks.
  std::string plan = {};
  // How long the ranks may take to join, from the first one's Join(). If some are missing then, the
  // job ends with an error that names them. 0: no limit; a rank that waits logs a warning with the
  // missing ranks after 5 s and then every 30 s. Same on every rank.
  std::chrono::milliseconds join_timeout{0};
  // Same on every rank. kFixed excludes `plan`, more than 254 ranks, and tenants that require
  // encryption. The error of a sum of n values below 2^e is at most n * n * 2^(e-32), besides the
  // rounding of the result. A NaN or an infinity makes its block NaN. The daemon reserves memory
  // for a copy of every rank's gradients but one; it is used only if ranks drift apart by more than
  // staging_bytes.
  Sum sum = Sum::kFloat;
  // kFixed: elements of a block, from 16 to 848; 0: 350. Same on every rank.
  std::uint32_t sum_block = 0;
  // How long Leave() and the destructor wait for rounds in flight.
  std::chrono::milliseconds leave_timeout{5'000};
};

// Results of iterations (Apply::kIteration). A skipped iteration leaves parameters, optimizer state
// and the step count unchanged, bit for bit; its handles still complete with OK.
struct IterationOutcome {
  std::uint64_t decided = 0;  // iterations applied or skipped
  std::uint64_t skipped = 0;  // iterations skipped
  // The last iteration:
  bool last_skipped = false;
  double norm = 0.0;   // norm of its gradients before clipping; only with clip_norm
  double scale = 1.0;  // the factor that its gradients were multiplied by
};

// What a program adds to the record of its rank when an administrator runs `phubctl job dump`.
struct DumpRecord {
  std::string headline = {};  // one line, what the program does: "waits in operation 7, all_reduce"
  std::string text = {};      // lines for people, the most important first; cut if too long
  std::string json = {};      // for programs; left out if too long
};
// bytes_max: text and json together should not be longer.
using Recorder = std::function<DumpRecord(std::size_t bytes_max)>;

}  // namespace phub
