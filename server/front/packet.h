// Messages between phubd and its front, over the inherited pair of sockets (SOCK_SEQPACKET): one
// message is one packet, with at most one descriptor. Both ends read with bounds checks, because
// phubd must not trust a front that has been taken over.
//
//   phubd -> front   kTls      a sealed memory file with certificate, key and authorities, or
//                              nothing: no TLS
//                    kHealth   whether phubd serves
//                    kVerdict  on one kJudge: a status, and on success the upstream's socket; and
//                              whose connection to close for it, if all places are taken
//                    kDrain    accept no more connections
//   front -> phubd   kReady    the front serves
//                    kJudge    the first headers of a connection without an upstream
//                    kGone     a connection with an upstream has ended
//                    kReport   sign of life, and what was refused since the last report
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/descriptor.h"

namespace phub::server {

// The descriptors that the front inherits: the pair, then the listening sockets.
inline constexpr int kFrontPair = 3;
inline constexpr int kFrontListening = 4;
inline constexpr std::size_t kFrontListeningMax = 16;
// The first argument that makes phubd run as its own front.
inline constexpr const char* kFrontArgument = "--run-front";

enum class PacketType : std::uint8_t {
  kTls = 1,
  kHealth,
  kVerdict,
  kDrain,
  kReady,
  kJudge,
  kGone,
  kReport,
};

// What the front knows about the caller of a connection's first headers.
struct FrontCall {
  std::uint64_t connection = 0;
  std::string peer;  // "10.0.0.5:40112", "[::1]:40112"
  bool certificate = false;
  std::vector<std::string> uris;     // in the certificate
  std::int64_t certificate_end = 0;  // seconds since 1970
  std::string path;                  // "/phub.v1.Session/Join"
  std::vector<std::string> authorization;
};

struct FrontVerdict {
  std::uint64_t connection = 0;
  std::uint32_t code = 0;  // gRPC's status code; 0: the socket comes with it
  std::string message = {};
  std::string tenant = {};  // whose connection it is; empty: no tenant's
  // A connection of this tenant and address block must be closed, whatever the code is.
  bool displaces = false;
  std::string displaced_tenant = {};
  std::string displaced_block = {};
};

// Connections that were closed, and calls that the front ended, since the last report.
struct FrontReport {
  std::uint64_t form = 0;
  std::uint64_t crowd = 0;
  std::uint64_t late = 0;
  std::uint64_t flood = 0;
  std::uint64_t memory = 0;
  std::uint64_t unfinished = 0;  // calls that were ended
  std::uint64_t calls = 0;       // refused for their headers
  bool any() const { return form + crowd + late + flood + memory + unfinished + calls > 0; }
  void Add(const FrontReport& other) {
    form += other.form;
    crowd += other.crowd;
    late += other.late;
    flood += other.flood;
    memory += other.memory;
    unfinished += other.unfinished;
    calls += other.calls;
  }
};

class PacketWriter {
 public:
  explicit PacketWriter(PacketType type) { bytes_.push_back(static_cast<char>(type)); }
  PacketWriter& U64(std::uint64_t value);
  PacketWriter& Text(std::string_view text);
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class PacketReader {
 public:
  explicit PacketReader(std::string_view bytes) : rest_(bytes) {}
  std::uint64_t U64();
  std::string Text();
  bool ok() const { return ok_ && rest_.empty(); }  // everything was read, and nothing more

 private:
  std::string_view rest_;
  bool ok_ = true;
};

std::string ToPacket(const FrontCall& call);
std::string ToPacket(const FrontVerdict& verdict);
std::string ToPacket(const FrontReport& report);
std::optional<FrontCall> ReadFrontCall(std::string_view body);
std::optional<FrontVerdict> ReadFrontVerdict(std::string_view body);
std::optional<FrontReport> ReadFrontReport(std::string_view body);

struct Packet {
  PacketType type = PacketType::kReady;
  std::string body;
  Descriptor descriptor;
};

enum class PairState { kDone, kBlocked, kEnded };
// Never blocks. kEnded: the other process has closed its end or has sent something invalid.
PairState SendPacket(int pair, std::string_view bytes, int descriptor = -1);
PairState ReceivePacket(int pair, Packet& packet);

// The content of a sealed memory file with several texts; empty on failure.
Descriptor SealedTexts(const std::vector<std::string>& texts);
std::optional<std::vector<std::string>> ReadSealedTexts(int file, std::size_t count);

}  // namespace phub::server
