// Accepts connections from processes on this host: reads their requests, asks the gate, and answers
// with memory.
//
// Listens on a Unix socket in the abstract namespace, which leaves no file behind, under a random
// name that workers get from the control plane. Names are not secret (/proc/net/unix lists them);
// nonces are. Packets keep their boundaries (SOCK_SEQPACKET), so a request is never split.
//
// pending_lanes.h describes the limits for peers that wait. Off the data path: one thread of the
// daemon calls PollOnce in a loop; any thread may read counters() and batches().
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
  std::uint32_t pending_max = 1024;  // connections without a request
  std::uint32_t pending_per_user_max = 256;
  ShmLimits limits{};  // for new connections
};

class ShmListener {
 public:
  // The gate and the clock must outlive the listener. `random` chooses the name.
  static absl::StatusOr<std::unique_ptr<ShmListener>> Create(const ShmListenerOptions& options,
                                                             ShmGate& gate, const Clock& clock,
                                                             Random& random);
  ~ShmListener();
  ShmListener(const ShmListener&) = delete;
  ShmListener& operator=(const ShmListener&) = delete;

  // "phub-" and 32 hexadecimal digits, for DialShm and FetchSharedBatch.
  const std::string& name() const;

  // Waits for at most `timeout` (rounded down to milliseconds) and serves the sockets that are
  // ready, in bounded time. True if anything was ready.
  bool PollOnce(DurationNs timeout);

  const LaneListenerCounters& counters() const;
  std::uint64_t batches() const;        // requests for key memory that were granted
  std::uint32_t pending_count() const;  // call from the listener's thread

 private:
  struct Impl;
  explicit ShmListener(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phub::transport
