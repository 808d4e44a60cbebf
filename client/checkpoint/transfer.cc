#include "client/checkpoint/transfer.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "common/base/host_name.h"
#include "common/base/printable.h"
#include "common/base/shortage.h"
#include "common/rpc/outage.h"

namespace phub::client {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(100);

}  // namespace

absl::Status FromGrpc(const grpc::Status& status, const std::string& endpoint) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  const std::string details = status.error_details();
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::UNKNOWN:
    case grpc::StatusCode::UNIMPLEMENTED:
      return rpc::StatusOfCall(
          {code, fmt::format("daemon {}: {}", endpoint, status.error_message())}, details);
    default: return rpc::StatusOfCall({code, status.error_message()}, details);
  }
}

v1::SavedState WhereSaved(std::uint64_t iteration, const std::string& directory) {
  constexpr std::size_t kDirectoryBytesMax = 1024;
  std::error_code gone;  // set if the working directory does not exist
  const std::filesystem::path absolute = std::filesystem::absolute(directory, gone);
  v1::SavedState state;
  state.set_iteration(iteration);
  state.set_directory(Printable(gone ? directory : absolute.string(), kDirectoryBytesMax));
  state.set_host(Printable(HostName()));
  return state;
}

void Prepare(grpc::ClientContext& context, const TransferOptions& options) {
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(options.call_timeout));
}

Transfer::Transfer(std::size_t daemon_count, std::uint64_t bytes_max,
                   const TransferOptions& options)
    : bytes_max_(bytes_max), options_(options) {
  for (std::size_t i = 0; i < daemon_count; ++i) {
    contexts_.push_back(std::make_unique<grpc::ClientContext>());
  }
}

void Transfer::Moved(std::uint64_t bytes) {
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  moves_.fetch_add(1, std::memory_order_relaxed);
}

void Transfer::CancelAll() {
  for (const auto& context : contexts_) context->TryCancel();
}

absl::Status Transfer::Run(const std::function<absl::Status(std::size_t daemon)>& move) {
  std::mutex mutex;
  std::condition_variable changed;
  std::size_t running = contexts_.size();  // protected by `mutex`, like the next two
  absl::Status first;
  bool cancelled = false;
  const auto fail = [&](const absl::Status& status) {  // REQUIRES: `mutex` is held
    if (first.ok()) first = status;
    if (!std::exchange(cancelled, true)) CancelAll();
  };
  const auto move_one = [&](std::size_t daemon) {
    const absl::Status status = move(daemon);
    const std::lock_guard lock(mutex);
    --running;
    if (!status.ok()) fail(status);
    changed.notify_one();
  };
  std::vector<std::thread> threads(contexts_.size());
  for (std::size_t daemon = 0; daemon < contexts_.size(); ++daemon) {
    const absl::Status started =
        StartThread(threads[daemon], "transfer", [&move_one, daemon] { move_one(daemon); });
    if (started.ok()) continue;
    const std::lock_guard lock(mutex);
    running -= contexts_.size() - daemon;  // this one and all later ones
    fail(started);
    break;
  }
  std::uint64_t moves_seen = 0;
  auto moved_at = std::chrono::steady_clock::now();
  for (std::unique_lock lock(mutex); running > 0;) {
    changed.wait_for(lock, kWatchInterval);
    const auto now = std::chrono::steady_clock::now();
    const std::uint64_t moves = moves_.load(std::memory_order_relaxed);
    if (moves != std::exchange(moves_seen, moves)) moved_at = now;
    if (now - moved_at > std::chrono::nanoseconds(options_.idle_timeout)) {
      if (first.ok()) idle_ = true;
      fail(absl::DeadlineExceededError(
          fmt::format("no data was transferred for {:.1f} s; probably no round completed, or a "
                      "daemon is stuck",
                      static_cast<double>(options_.idle_timeout) / static_cast<double>(kSecond))));
    }
    if (!options_.progress) continue;
    const TransferProgress progress{TransferProgress::Phase::kMoving, 0,
                                    bytes_.load(std::memory_order_relaxed), bytes_max_};
    if (!options_.progress(progress)) fail(absl::CancelledError("the transfer was cancelled"));
  }
  for (std::thread& thread : threads) {
    if (thread.joinable()) thread.join();
  }
  return first;
}

}  // namespace phub::client
