// What every listener for lanes does before a peer is anybody: accepts, waits for what it asks,
// bounds how many wait and for how long, and refuses.
//
// Until its request is there a peer has a deadline, a place in a table of fixed size, a request's
// worth of bytes in it, and no more places than its origin (an address, a user) may have. With TLS
// the first bytes are a ClientHello, which has to prove that its sender has a lane's key before
// anything is kept for it: a handshake is begun by one call that either ends it or lasts.
// Cold path: one thread of the daemon calls PollOnce in a loop; counters may be read from any
// thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "common/base/descriptor.h"
#include "common/base/single_writer_number.h"
#include "common/wire/lane_hello.h"

namespace phub::transport {

// One writer, the listener's thread; relaxed. Of lanes of another kind (tcp/lane_kind.h) only what
// is judged on that thread.
struct LaneListenerCounters {
  std::atomic<std::uint64_t> accepted{0};      // became lanes
  std::atomic<std::uint64_t> refused_form{0};  // nothing that a lane's peer asks
  std::atomic<std::uint64_t> refused_version{0};
  std::atomic<std::uint64_t> refused_nonce{0};
  std::atomic<std::uint64_t> refused_job{0};
  std::atomic<std::uint64_t> refused_busy{0};
  std::atomic<std::uint64_t> refused_capacity{0};  // by the gate, or for want of memory
  std::atomic<std::uint64_t> refused_plain{0};     // right, but not encrypted, where lanes are
  std::atomic<std::uint64_t> refused_key{0};       // a handshake without the key of a lane
  std::atomic<std::uint64_t> over_capacity{0};     // by places_max, places_per_origin_max or
                                                   // handshakes_max
  std::atomic<std::uint64_t> timeouts{0};          // did not ask in time
  std::atomic<std::uint64_t> closed_early{0};      // went away before its request was whole
  std::atomic<std::uint64_t> accept_errors{0};     // out of descriptors or memory
};

void Count(std::atomic<std::uint64_t>& counter);

// The version that a peer and this build both speak, or none.
std::optional<std::uint8_t> CommonVersion(std::uint8_t version_min, std::uint8_t version_max);
wire::LaneWelcome WelcomeOf(std::uint8_t version);
// To the peer of a new lane's socket, if it still listens.
void SendWelcome(const Descriptor& socket, const wire::LaneWelcome& welcome);
void SendRefusal(const Descriptor& socket, wire::LaneRefusal refusal);

class PendingLanes {
 public:
  struct Options {
    DurationNs request_timeout = 3 * kSecond;
    std::uint32_t places_max = 1024;
    std::uint32_t places_per_origin_max = 64;
    std::uint32_t handshakes_max = 256;  // at once; some 80 KiB each
    bool packets = false;                // a request is one packet, of any size; else of a stream
    std::string transport_name;          // for the log
  };
  // Where a peer comes from.
  struct Origin {
    std::array<std::byte, 16> key{};  // what is counted
    std::string text;                 // for people
  };

  // What a peer goes through between its first bytes and its request.
  class Handshake {
   public:
    enum class Step : std::uint8_t { kWaits, kDone, kFailed };
    virtual ~Handshake() = default;
    // Its socket may have bytes. kDone: the request is there.
    virtual Step Advance() = 0;
  };

  // The clock outlives this.
  PendingLanes(const Options& options, const Clock& clock);
  virtual ~PendingLanes();
  PendingLanes(const PendingLanes&) = delete;
  PendingLanes& operator=(const PendingLanes&) = delete;

  // Serves a listening, non-blocking socket. `where` is for the error.
  absl::Status Listen(Descriptor listening, const std::string& where);

  // Waits for at most `timeout` (rounded down to milliseconds) and serves what is ready, in bounded
  // time. True if anything was.
  bool PollOnce(DurationNs timeout);

  const LaneListenerCounters& counters() const { return counters_; }
  // Of places taken; any thread.
  std::uint32_t count() const { return static_cast<std::uint32_t>(count_.Get()); }

 protected:
  static constexpr std::size_t kRequestBytesMax = 1024;
  static_assert(kRequestBytesMax <= 4096, "what a stranger may cost");

  // Tells the peer, if it still listens, and counts.
  void Refuse(const Descriptor& socket, wire::LaneRefusal refusal);
  void CountRefusal(wire::LaneRefusal refusal);
  void CountRefusedForm() { Count(counters_.refused_form); }
  void CountAccepted() { Count(counters_.accepted); }

 private:
  // Accepts one connection, non-blocking; none, with errno, if there is none or it failed.
  virtual Descriptor Accept(const Descriptor& listening, Origin& origin) = 0;
  // Of a stream: how long the whole request is of which these are the first 64 bytes; at least as
  // many, at most kRequestBytesMax.
  virtual std::size_t RequestBytes(std::span<const std::byte> first) const { return first.size(); }
  // Of a stream, whole first bytes: null if they are the request. Done or failed at once, or it is
  // kept, in the peer's place, for as long as its time is not up.
  virtual std::unique_ptr<Handshake> BeginHandshake(int /*socket*/,
                                                    std::span<const std::byte> /*first*/) {
    return nullptr;
  }
  // It is done; its place is free again.
  virtual void DecideAfter(std::unique_ptr<Handshake> /*handshake*/, Descriptor /*socket*/,
                           const Origin& /*origin*/) {}
  // A whole request, or a packet that may be anything. Its place is free again.
  virtual void Decide(Descriptor socket, std::span<const std::byte> request,
                      const Origin& origin) = 0;

  static constexpr std::size_t kRequestBytes = wire::kLaneHelloBytes;
  struct Place {
    Descriptor socket;  // none: the place is free
    Origin origin;
    TimeNs deadline = 0;
    std::size_t have = 0;
    std::size_t want = kRequestBytes;
    std::unique_ptr<Handshake> handshake;  // once the first bytes were whole
    std::array<std::byte, kRequestBytesMax> bytes;
  };

  int WaitMilliseconds(DurationNs timeout) const;
  void WatchAccepting(bool on);
  void AcceptSome();
  void GivePlace(Descriptor socket, Origin origin);
  void Serve(Place& place);
  void Read(Place& place);
  void Advance(Place& place);
  bool CloseLate();
  Descriptor TakeSocket(Place& place);

  const Options options_;
  const Clock& clock_;
  std::vector<Place> places_;
  SingleWriterNumber count_;
  std::uint32_t handshakes_ = 0;
  Descriptor listening_;
  Descriptor epoll_;
  TimeNs accept_paused_until_ = 0;  // 0: not paused
  LaneListenerCounters counters_;
};

}  // namespace phub::transport
