// Makes a lane, or fetches memory, from the client's side. Cold: blocks, allocates, any thread.
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

// Connects to a daemon of this host by the name that its control gave (ShmListener::name), says
// hello and maps what it answers; all within `timeout`. Versions both 0 stand for what this build
// speaks. `regions` is the rank's table at this daemon, common to its lanes; may be null. Of
// `limits` the rings' sizes are the daemon's to choose. The connection is for a ShmTransport.
//
// Errors name the socket and the reason:
//   kUnavailable         nobody listens there (another network namespace, or the daemon is
//                        gone), or the connection broke
//   kDeadlineExceeded    no answer in time
//   kInvalidArgument     the name is too long
//   kInternal            what answered is not a phub daemon, or passed memory that does not fit
//   kFailedPrecondition  refused: no lane version in common; the job or its epoch is over
//   kPermissionDenied    refused: nonce
//   kAlreadyExists       refused: the lane's place is held by a live lane
//   kResourceExhausted   refused: too many connections, or no memory
absl::StatusOr<std::unique_ptr<Connection>> DialShm(const std::string& name,
                                                    const wire::LaneHello& hello,
                                                    DurationNs timeout,
                                                    std::shared_ptr<const SharedRegions> regions,
                                                    const ShmLimits& limits = {});

// What a batch of keys has in shared memory, mapped here. Either may be null.
struct FetchedBatch {
  std::shared_ptr<const SharedMemory> worker;      // this rank's own, read-write
  std::shared_ptr<const SharedMemory> parameters;  // read-only
  // The indices under which the daemon knows them: add them to SharedRegions in that order.
  std::uint32_t worker_region = 0;
  std::uint32_t parameters_region = 0;
};
absl::StatusOr<FetchedBatch> FetchSharedBatch(const std::string& name,
                                              const wire::SharedBatchRequest& request,
                                              DurationNs timeout);
// Adds what was fetched, in the daemon's order. kInternal if the indices are not the ones said.
absl::Status AddRegions(const FetchedBatch& batch, SharedRegions& regions);

}  // namespace phub::transport
