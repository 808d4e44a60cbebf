// Accepts the processes of this host: reads what they ask for, asks the gate, answers with memory.
//
// Listens on a Unix socket in the abstract namespace, which leaves no file behind, under a random
// name that control tells to workers. /proc/net/unix lists names: they are no secret, nonces are.
// Packets keep their bounds (SOCK_SEQPACKET), so a request comes whole or not at all.
//
// Before its request is admitted a peer is nobody: it gets a deadline, a place in a table of fixed
// size, and no more places than its user may have. Cold path: one thread of the daemon calls
// PollOnce in a loop; counters() may be read from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/shm/shm_gate.h"

namespace phub::transport {

struct ShmListenerOptions {
  DurationNs hello_timeout = 3 * kSecond;
  std::uint32_t pending_max = 1024;  // connections that have not asked yet
  std::uint32_t pending_per_user_max = 256;
  ShmLimits limits{};  // of the connections it makes
};

// One writer, the listener's thread; relaxed.
struct ShmListenerCounters {
  std::atomic<std::uint64_t> accepted{0};      // became lanes
  std::atomic<std::uint64_t> batches{0};       // memory of keys handed out
  std::atomic<std::uint64_t> refused_form{0};  // neither a hello nor a request for memory
  std::atomic<std::uint64_t> refused_version{0};
  std::atomic<std::uint64_t> refused_nonce{0};
  std::atomic<std::uint64_t> refused_job{0};
  std::atomic<std::uint64_t> refused_busy{0};
  std::atomic<std::uint64_t> refused_capacity{0};  // by the gate, or for want of memory
  std::atomic<std::uint64_t> over_capacity{0};     // by pending_max or pending_per_user_max
  std::atomic<std::uint64_t> timeouts{0};          // asked nothing in time
  std::atomic<std::uint64_t> closed_early{0};      // went away before asking
  std::atomic<std::uint64_t> accept_errors{0};     // out of descriptors or memory
};

class ShmListener {
 public:
  // The gate and the clock outlive the listener. `random` chooses the name.
  static absl::StatusOr<std::unique_ptr<ShmListener>> Create(const ShmListenerOptions& options,
                                                             ShmGate& gate, const Clock& clock,
                                                             Random& random);
  ~ShmListener();
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  // "phub-" and 32 hexadecimal digits, for DialShm and FetchSharedBatch.
  const std::string& name() const;

  // Waits for at most `timeout` (rounded down to milliseconds) and serves what is ready, in bounded
  // time. True if anything was.
  bool PollOnce(DurationNs timeout);

  const ShmListenerCounters& counters() const;
  std::uint32_t pending_count() const;  // the listener's thread

 private:
  struct State;
  explicit ShmListener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace phub::transport
