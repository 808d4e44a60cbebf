// Accepts the processes of this host: reads what they ask for, asks the gate, answers with memory.
//
// Listens on a Unix socket in the abstract namespace, which leaves no file behind, under a random
// name that control tells to workers. /proc/net/unix lists names: they are no secret, nonces are.
// Packets keep their bounds (SOCK_SEQPACKET), so a request comes whole or not at all.
//
// pending_lanes.h says what is bounded before a request is there. Cold path: one thread of the
// daemon calls PollOnce in a loop; counters() and batches() may be read from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/random.h"
#include "common/transport/pending_lanes.h"
#include "common/transport/shm/shm_gate.h"

namespace phub::transport {

struct ShmListenerOptions {
  DurationNs hello_timeout = 3 * kSecond;
  std::uint32_t pending_max = 1024;  // connections that have not asked yet
  std::uint32_t pending_per_user_max = 256;
  ShmLimits limits{};  // of the connections it makes
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

  const LaneListenerCounters& counters() const;
  std::uint64_t batches() const;        // times that memory of keys was handed out
  std::uint32_t pending_count() const;  // the listener's thread

 private:
  struct Impl;
  explicit ShmListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::transport
