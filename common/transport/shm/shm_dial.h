// Opens a lane, or fetches memory, from the client's side. Off the data path: blocks, allocates,
// any thread.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/shared_memory.h"
#include "common/transport/shm/shm_connection.h"
#include "common/wire/lane_hello.h"
#include "common/wire/shared_memory.h"

namespace phub::transport {

// Connects to a daemon on this host by the name from its control plane (ShmListener::name), sends
// the hello and maps the memory that the daemon passes; all within `timeout`. Both versions 0:
// those of this build. `regions`: the table that the rank's lanes to this daemon share; may be
// null. The daemon chooses the sizes of the rings, so those in `limits` are ignored. A ShmTransport
// can adopt the result.
//
// Errors name the socket and the reason:
//   kUnavailable         connection refused (another network namespace, or the daemon has exited)
//                        or lost
//   kDeadlineExceeded    no answer in time
//   kInvalidArgument     the name is too long
//   kInternal            the peer is not a phub daemon, or the memory has the wrong size
//   kFailedPrecondition  refused: no common lane version; the job or its epoch has ended
//   kPermissionDenied    refused: invalid nonce
//   kAlreadyExists       refused: this lane is already open
//   kResourceExhausted   refused: too many connections, or no memory
absl::StatusOr<std::unique_ptr<Connection>> DialShm(const std::string& name,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    std::shared_ptr<const SharedRegions> regions,
                                                    const ShmLimits& limits = {});

// The shared memory of a batch of keys, mapped in this process. Either may be null.
struct FetchedBatch {
  std::shared_ptr<const SharedMemory> worker;      // this rank's own, read-write
  std::shared_ptr<const SharedMemory> parameters;  // read-only
  // Their indices in the daemon's table; AddRegions adds them to SharedRegions in that order.
  std::uint32_t worker_region = 0;
  std::uint32_t parameters_region = 0;
};
absl::StatusOr<FetchedBatch> FetchSharedBatch(const std::string& name,
                                              const wire::SharedBatchRequest& request,
                                              DurationNs timeout);
// Adds the fetched memory in the daemon's order. kInternal: an index differs from the daemon's.
absl::Status AddRegions(const FetchedBatch& batch, SharedRegions& regions);

}  // namespace phub::transport
