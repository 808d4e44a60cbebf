// A core loop of the daemon with its transports and its thread. The daemon creates and owns it;
// only the thread uses the loop and the transports.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/transport/shm/shm_transport.h"
#include "common/transport/tcp/tcp_transport.h"
#include "common/transport/verbs/verbs_transport.h"
#include "server/core/core_loop.h"
#include "server/core_thread.h"

namespace phub::server {

// Positions in every core loop's list of transports.
inline constexpr std::uint8_t kTcpIndex = 0;
inline constexpr std::uint8_t kShmIndex = 1;
inline constexpr std::uint8_t kVerbsIndex = 2;

// One core loop and its parts. The transports come first because they must outlive the loop.
struct CoreUnit {
  transport::TcpTransport tcp;
  transport::ShmTransport shm;
  std::unique_ptr<transport::VerbsTransport> verbs;  // null: the daemon has no RDMA device
  std::vector<transport::Transport*> transports{&tcp, &shm};
  CoreLoop loop;
  std::unique_ptr<CoreThread> thread;  // created after control's doorbell
  std::uint64_t runs_seen = 0;         // by Daemon::MakesProgress

  CoreUnit(CoreIndex core, const Clock& clock, std::uint32_t staging_bytes_per_lane,
           std::shared_ptr<transport::VerbsQueue> queue)
      : tcp(transport::kConnectionsMaxDefault, transport::LingerBytes(staging_bytes_per_lane)),
        verbs(MakeVerbs(std::move(queue))),
        loop(core, clock, List()) {}

 private:
  static std::unique_ptr<transport::VerbsTransport> MakeVerbs(
      std::shared_ptr<transport::VerbsQueue> queue) {
    if (queue == nullptr) return nullptr;
    return std::make_unique<transport::VerbsTransport>(std::vector{std::move(queue)});
  }
  std::span<transport::Transport* const> List() {
    if (verbs != nullptr) transports.push_back(verbs.get());
    return transports;
  }
};

}  // namespace phub::server
