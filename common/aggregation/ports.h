// The two ends of a stream's datagrams: they perform the actions of WorkerStream and CoreStream
// over a UDP socket. The decisions are made there; here are headers, checks, and when the core loop
// asks again. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "common/aggregation/core_stream.h"
#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/nack_timers.h"
#include "common/aggregation/packet.h"
#include "common/aggregation/worker_stream.h"
#include "common/base/clock.h"

namespace phub::aggregation {

// How many datagrams had which verdict of phub_packet_check().
using CheckCounts = std::array<std::uint64_t, PHUB_CHECK_COUNT>;

// A worker's end.
class WorkerPort {
 public:
  struct Payload {
    std::span<const std::int32_t> integers;  // valid until the next call
    std::uint8_t exponent = 0;
  };
  using PayloadOf = std::function<Payload(ChunkIndex, Iteration, std::uint32_t block)>;
  // A block of new parameters has arrived. The bytes are valid during the call.
  using OnParameters =
      std::function<void(const phub_parameters&, std::span<const std::byte> bytes)>;

  // `stream` and `socket` must outlive the port.
  WorkerPort(const Geometry& geometry, WorkerStream& stream, DatagramSocket& socket,
             PayloadOf payload_of, OnParameters on_parameters);

  // Call it with the lease before stream.StreamIs() gets its number. `worker`: this worker's
  // number.
  void Open(const phub_lease& lease, std::uint8_t worker);

  // Sends the datagrams among the actions, and appends the actions over tcp to `over_tcp`.
  void Perform(const WorkerActions& actions, WorkerActions& over_tcp);
  // Receives one batch and answers it; returns false if none waits. REFUSED is counted: ranks use
  // different exponents, so the job cannot continue.
  bool Receive();

  const CheckCounts& checks() const { return checks_; }
  std::uint64_t payloads_sent() const { return payloads_sent_; }
  std::uint64_t refused() const { return refused_; }

 private:
  void Send(const WorkerAction& action);
  void Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source);

  Geometry geometry_;
  WorkerStream& stream_;
  DatagramSocket& socket_;
  PayloadOf payload_of_;
  OnParameters on_parameters_;
  phub_lease lease_{};
  std::uint8_t worker_ = 0;
  CheckCounts checks_{};
  std::uint64_t payloads_sent_ = 0;
  std::uint64_t refused_ = 0;
};

// The core loop's end.
class CorePort {
 public:
  // Performs what a sum led to: `integers` for kFold.
  using OnSum = std::function<void(const CoreActions&, std::span<const std::int32_t> integers,
                                   std::uint8_t exponent)>;

  CorePort(const Geometry& geometry, CoreStream& stream, DatagramSocket& socket);

  void Open(const phub_lease& lease);
  // The stream has assigned the position.
  void NoteAssigned(Position position, TimeNs now) { timers_.Assigned(position, now); }
  // Sends the block of a chunk's new version to all workers, or with a number to one of them. Its
  // bytes: at most 4 * count_max, an even number, padded with zeros to a multiple of 4. Copies
  // them.
  void SendParameters(const phub_parameters& about, std::span<const std::byte> bytes,
                      std::uint8_t worker = PHUB_EVERY_WORKER);
  // Sends what was queued.
  void Flush() { socket_.Flush(); }
  // Receives one batch; returns false if none waits.
  bool Receive(TimeNs now, const OnSum& on_sum);
  // Asks for sums that have not arrived where it is time, and returns how many NACKs that took.
  // Call it at deadline() at the latest. REQUIRES: a stream is open.
  std::uint32_t AskAgain(TimeNs now);
  TimeNs deadline() const { return timers_.deadline(); }
  // Datagrams that the checks have refused.
  std::uint64_t refused() const { return refused_; }

 private:
  void Handle(std::span<const std::uint8_t> datagram, const phub_endpoint& source, TimeNs now,
              const OnSum& on_sum);
  void SendNack(Position position);

  Geometry geometry_;
  CoreStream& stream_;
  DatagramSocket& socket_;
  phub_lease lease_{};
  NackTimers timers_;
  CoreActions actions_;            // what the present datagram leads to
  std::uint16_t nack_number_ = 0;  // that of the last one
  std::uint64_t refused_ = 0;
};

}  // namespace phub::aggregation
