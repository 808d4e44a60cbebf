// Transfers bytes to or from several daemons at once: one thread per daemon, while the calling
// thread monitors progress. Private to client/checkpoint.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "client/checkpoint/checkpoint.h"

namespace phub::client {

// The status of a call. Adds the daemon's name if the error is not the daemon's own answer.
absl::Status FromGrpc(const grpc::Status& status, const std::string& endpoint);
// Sets the deadline of one unary call.
void Prepare(grpc::ClientContext& context, const TransferOptions& options);

class Transfer {
 public:
  Transfer(std::size_t daemon_count, std::uint64_t bytes_max, const TransferOptions& options);

  grpc::ClientContext& context(std::size_t daemon) { return *contexts_[daemon]; }
  // Called by the transferring threads after they transferred bytes.
  void Moved(std::uint64_t bytes);

  // Runs `move` for every daemon, each on its own thread, and waits for all. Cancels all calls if
  // one fails, if there is no progress for idle_timeout, or if progress() returns false. Returns
  // the first failure.
  absl::Status Run(const std::function<absl::Status(std::size_t daemon)>& move);
  bool idle() const { return idle_; }  // Run() failed for lack of progress

 private:
  void CancelAll();

  const std::uint64_t bytes_max_;
  const TransferOptions& options_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;  // [daemon]
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> moves_{0};
  bool idle_ = false;
};

}  // namespace phub::client
