// What the conformance suite needs from a transport under test: two transports, a way to connect
// them, and a way to make progress. There is one harness per transport; the tests are the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/transport/transport.h"

namespace phub::conformance {

struct HarnessLimits {
  std::uint32_t send_queue = 64;
  std::uint32_t received_lent = 64;
  std::uint32_t connections_max = 64;
};

// The other end of a connection, without a transport: sends any bytes that a test chooses.
class RawPeer {
 public:
  virtual ~RawPeer() = default;
  virtual void Write(std::span<const std::byte> bytes) = 0;  // writes all bytes
  virtual void Close() = 0;                                  // closes in order
  virtual void Reset() = 0;
};

class Harness {
 public:
  using ConnectionPair =
      std::pair<std::unique_ptr<transport::Connection>, std::unique_ptr<transport::Connection>>;
  virtual ~Harness() = default;
  virtual transport::Transport& left() = 0;
  virtual transport::Transport& right() = 0;
  virtual ConnectionPair Connect() = 0;  // for left and right to adopt
  // A connection for left; null if lanes are not byte streams.
  virtual std::unique_ptr<RawPeer> ConnectRaw(
      std::unique_ptr<transport::Connection>& connection) = 0;
  // Makes progress: a moment of real time, or the next event.
  virtual void Pump() = 0;
};

struct HarnessFactory {
  std::string name;
  std::unique_ptr<Harness> (*make)(const HarnessLimits& limits);
  bool blocks = true;  // transports have a descriptor to block on; simulated ones do not
  // Lanes are byte streams, so a peer can send any bytes; not so with shared memory.
  bool streams = true;
};

std::unique_ptr<Harness> MakeTcpHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeTlsHarness(const HarnessLimits& limits);
// With the left side as the daemon's end or the client's, or with the smallest possible rings.
std::unique_ptr<Harness> MakeShmDaemonHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeShmClientHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeShmSmallHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeCalmSimHarness(const HarnessLimits& limits);
// Split reads, partial writes, jitter and clogs. No resets, which tests cause themselves.
std::unique_ptr<Harness> MakeHostileSimHarness(const HarnessLimits& limits);

std::vector<HarnessFactory> AllHarnesses();
std::vector<HarnessFactory> BlockingHarnesses();
std::vector<HarnessFactory> StreamHarnesses();

}  // namespace phub::conformance
