// What the conformance suite needs of a transport under test: two transports, a way to connect
// them, and a way to let the world go on. One harness per transport; the tests are the same.
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

// The other end of a connection, without a transport: sends whatever bytes a test likes.
class RawPeer {
 public:
  virtual ~RawPeer() = default;
  virtual void Write(std::span<const std::byte> bytes) = 0;  // all of them
  virtual void Close() = 0;                                  // in order
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
  // A connection for left; null where lanes are no streams of bytes.
  virtual std::unique_ptr<RawPeer> ConnectRaw(
      std::unique_ptr<transport::Connection>& connection) = 0;
  // Lets something happen between the two: a moment of real time, or the next event.
  virtual void Pump() = 0;
};

struct HarnessFactory {
  std::string name;
  std::unique_ptr<Harness> (*make)(const HarnessLimits& limits);
  bool blocks = true;   // transports have a descriptor to block on: the simulated ones have not
  bool streams = true;  // lanes are streams of bytes, so a peer can send any: shared memory is not
};

std::unique_ptr<Harness> MakeTcpHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeTlsHarness(const HarnessLimits& limits);
// The left side is the daemon's end, or the client's; or the rings are as small as they may be.
std::unique_ptr<Harness> MakeShmDaemonHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeShmClientHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeShmSmallHarness(const HarnessLimits& limits);
std::unique_ptr<Harness> MakeCalmSimHarness(const HarnessLimits& limits);
// Split reads, partial writes, jitter and clogs; no resets, which tests cause themselves.
std::unique_ptr<Harness> MakeHostileSimHarness(const HarnessLimits& limits);

std::vector<HarnessFactory> AllHarnesses();
std::vector<HarnessFactory> BlockingHarnesses();
std::vector<HarnessFactory> StreamHarnesses();

}  // namespace phub::conformance
