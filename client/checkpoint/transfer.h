// Moving bytes to or from several daemons at once: a thread for each, and one that watches over
// them. Private to client/checkpoint.
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

// A failed call, with the daemon's name where the daemon itself did not say anything.
absl::Status FromGrpc(const grpc::Status& status, const std::string& endpoint);
// Sets the deadline of one unary call.
void Prepare(grpc::ClientContext& context, const TransferOptions& options);

class Transfer {
 public:
  Transfer(std::size_t daemon_count, std::uint64_t bytes_max, const TransferOptions& options);

  grpc::ClientContext& context(std::size_t daemon) { return *contexts_[daemon]; }
  // From the moving threads: something moved.
  void Moved(std::uint64_t bytes);

  // Runs `move` for every daemon, each on a thread of its own, until all have returned. When one
  // fails, when nothing moves for idle_timeout, or progress() says so, all calls are cancelled; the
  // first failure is returned.
  absl::Status Run(const std::function<absl::Status(std::size_t daemon)>& move);

 private:
  void CancelAll();

  const std::uint64_t bytes_max_;
  const TransferOptions& options_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;  // [daemon]
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<std::uint64_t> moves_{0};
};

}  // namespace phub::client
