// Bounds what a tenant's connections and calls cost. Large requests are parsed in turns: one of a
// tenant at a time, and two in all. Until then only their bytes are kept. These, answers that
// callers have not read yet, calls in progress and connections are charged to the tenant.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace phub::server {

// ConnectionCosts.AreNotMoreThanTheyAreChargedFor measures both: the growth of the resident memory
// of phubd and its front together (release build, gRPC 1.51.1), in three runs. The charges are
// higher, for what the kernel keeps for sockets.
//
//   300 connections, TLS, one call each     92 KB each
//   1000 Attend streams on 10 of them       18.9 KB each
//
// A call in progress, besides its messages: gRPC's state, and what control remembers of it.
inline constexpr std::uint64_t kOpenCallBytes = 24 << 10;
// A connection: TLS and HTTP/2 in the front, gRPC's side of the pair, three sockets.
inline constexpr std::uint64_t kConnectionBytes = 128 << 10;

class RequestTurns {
 public:
  // Ends when its last copy is gone.
  using Token = std::shared_ptr<void>;

  explicit RequestTurns(std::uint64_t tenant_bytes_max);
  ~RequestTurns();  // Stop()
  // An error if the process lacks threads. Check it before the first call.
  const absl::Status& started() const { return started_; }

  // Charges the tenant while the token lasts. RESOURCE_EXHAUSTED names the setting.
  absl::StatusOr<Token> Charge(const std::string& tenant, std::uint64_t bytes);
  // Runs `work` on a thread of this object when it is the tenant's turn, which lasts as long as the
  // token.
  void Post(const std::string& tenant, std::function<void(Token)> work);
  // Drops what has not started, now and later. Owner's thread, without control's lock.
  void Stop();

 private:
  static constexpr std::size_t kAtOnce = 2;
  using Work = std::function<void(Token)>;
  // Tokens may outlive this object.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::string, std::uint64_t> charged;     // bytes, not 0
    std::map<std::string, std::deque<Work>> waiting;  // not empty
    std::set<std::string> at_work;                    // tenants
    std::string last;                                 // whose turn began last
    bool stopping = false;

    // Under the mutex: the next tenant that may begin; end() if no tenant may.
    std::map<std::string, std::deque<Work>>::iterator Next();
  };
  void Loop();

  const std::uint64_t tenant_bytes_max_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
  const absl::Status started_;
};

}  // namespace phub::server
