// Common base of the listeners for lanes: accepts connections, reads their requests, refuses peers,
// and limits how many peers wait and for how long.
//
// Limits for peers that are not authenticated yet: a peer has a deadline, one place in a table of
// fixed size, and a buffer for one request. Peers of one origin (an address block, a user) share a
// limited number of places. A newcomer that finds no place displaces the oldest silent peer: of its
// own origin if that has its limit, otherwise of the origin that has the most. A peer is silent
// until its first bytes are complete. So attackers displace each other, and a peer that sends its
// request at once gets in. With TLS, the first bytes are a ClientHello. It must prove that the
// sender has a lane's key before the daemon keeps any state: the first call of a handshake either
// fails it or has verified the key. Off the data path: one thread of the daemon calls PollOnce in a
// loop; any thread may read counters.
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

// One writer, the listener's thread; relaxed. Lanes of another kind (tcp/lane_kind.h) are counted
// only as far as that thread decides about them.
struct LaneListenerCounters {
  std::atomic<std::uint64_t> accepted{0};      // connections that became lanes
  std::atomic<std::uint64_t> refused_form{0};  // not a valid request
  std::atomic<std::uint64_t> refused_version{0};
  std::atomic<std::uint64_t> refused_nonce{0};
  std::atomic<std::uint64_t> refused_job{0};
  std::atomic<std::uint64_t> refused_busy{0};
  std::atomic<std::uint64_t> refused_capacity{0};  // by the gate, or for lack of memory
  std::atomic<std::uint64_t> refused_plain{0};     // valid, but encryption is required
  std::atomic<std::uint64_t> refused_key{0};       // TLS handshake without a lane's key
  std::atomic<std::uint64_t> over_capacity{0};     // by places_max, places_per_origin_max or
                                                   // handshakes_max
  std::atomic<std::uint64_t> timeouts{0};          // no complete request before the deadline
  std::atomic<std::uint64_t> closed_early{0};      // closed before the request was complete
  std::atomic<std::uint64_t> accept_errors{0};     // out of descriptors or memory
};

void Count(std::atomic<std::uint64_t>& counter);

// The highest version that a peer and this build both support, or none.
std::optional<std::uint8_t> CommonVersion(std::uint8_t version_min, std::uint8_t version_max);
wire::LaneWelcome WelcomeOf(std::uint8_t version);
// Both answer the peer of a new socket; a failure to send is ignored.
void SendWelcome(const Descriptor& socket, const wire::LaneWelcome& welcome);
void SendRefusal(const Descriptor& socket, wire::LaneRefusal refusal);

class PendingLanes {
 public:
  struct Options {
    DurationNs request_timeout = 3 * kSecond;
    std::uint32_t places_max = 1024;
    std::uint32_t places_per_origin_max = 64;
    std::uint32_t handshakes_max = 256;  // concurrent; about 80 KiB each
    bool packets = false;                // a request is one packet of any size; false: a stream
    std::string transport_name;          // for the log
  };
  // Where a peer comes from.
  struct Origin {
    std::array<std::byte, 16> key{};  // peers with equal keys share places_per_origin_max
    std::string text;                 // for people
  };

  // An exchange between a peer's first bytes and its request.
  class Handshake {
   public:
    enum class Step : std::uint8_t { kWaits, kDone, kFailed };
    virtual ~Handshake() = default;
    // Called when the socket may have bytes. kDone: the request is complete.
    virtual Step Advance() = 0;
  };

  // The clock must outlive the object.
  PendingLanes(const Options& options, const Clock& clock);
  virtual ~PendingLanes();
  PendingLanes(const PendingLanes&) = delete;
  PendingLanes& operator=(const PendingLanes&) = delete;

  // Serves listening, non-blocking sockets. `where`: their address, for the error.
  absl::Status Listen(std::vector<Descriptor> listening, const std::string& where);

  // Waits for at most `timeout` (rounded down to milliseconds) and serves the sockets that are
  // ready, in bounded time. True if anything was ready.
  bool PollOnce(DurationNs timeout);

  const LaneListenerCounters& counters() const { return counters_; }
  // Occupied places; any thread.
  std::uint32_t count() const { return static_cast<std::uint32_t>(count_.Get()); }

 protected:
  static constexpr std::size_t kRequestBytesMax = 1024;
  static_assert(kRequestBytesMax <= 4096, "bounds the memory of an unauthenticated peer");

  // Sends the refusal to the peer and counts it.
  void Refuse(const Descriptor& socket, wire::LaneRefusal refusal);
  void CountRefusal(wire::LaneRefusal refusal);
  void CountRefusedForm() { Count(counters_.refused_form); }
  void CountAccepted() { Count(counters_.accepted); }

 private:
  // Accepts one connection without blocking. If no connection waits or accepting fails, returns an
  // empty descriptor and sets errno.
  virtual Descriptor Accept(const Descriptor& listening, Origin& origin) = 0;
  // Streams only: the length of the request that starts with these 64 bytes. At least 64, at most
  // kRequestBytesMax.
  virtual std::size_t RequestBytes(std::span<const std::byte> first) const { return first.size(); }
  // Streams only: starts a handshake with the peer's complete first bytes; null if these bytes are
  // the request itself. The handshake is kept in the peer's place until it is done, has failed, or
  // the deadline passes.
  virtual std::unique_ptr<Handshake> BeginHandshake(int /*socket*/,
                                                    std::span<const std::byte> /*first*/) {
    return nullptr;
  }
  // Decides about a peer whose handshake is done. Its place is free again.
  virtual void DecideAfter(std::unique_ptr<Handshake> /*handshake*/, Descriptor /*socket*/,
                           const Origin& /*origin*/) {}
  // Decides about a complete request, or about a packet with any content. Its place is free again.
  virtual void Decide(Descriptor socket, std::span<const std::byte> request,
                      const Origin& origin) = 0;

  static constexpr std::size_t kRequestBytes = wire::kLaneHelloBytes;
  struct Place {
    Descriptor socket;  // empty: the place is free
    Origin origin;
    std::uint64_t number = 0;  // in the order of arrival
    TimeNs deadline = 0;
    std::size_t have = 0;
    std::size_t want = kRequestBytes;
    std::unique_ptr<Handshake> handshake;  // set after the first bytes are complete
    std::array<std::byte, kRequestBytesMax> bytes;
  };

  struct Peers {  // of one origin
    std::uint32_t count = 0;
    Place* oldest = nullptr;  // among the silent ones
    void Add(Place& place) {
      ++count;
      if (place.handshake != nullptr) return;
      if (oldest == nullptr || place.number < oldest->number) oldest = &place;
    }
  };

  int WaitMilliseconds(DurationNs timeout) const;
  void WatchAccepting(bool on);
  void AcceptSome(const Descriptor& listening);
  void GivePlace(Descriptor socket, Origin origin);
  Place* FindPlace(const Origin& origin);
  Place* OldestOfLargest(const Peers& own);
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
  std::uint64_t arrivals_ = 0;
  std::vector<Descriptor> listening_;
  Descriptor epoll_;
  TimeNs accept_paused_until_ = 0;  // 0: not paused
  LaneListenerCounters counters_;
};

}  // namespace phub::transport
