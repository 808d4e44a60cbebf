// Findings of `phubctl doctor` about one transport on this host. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phub::transport {

struct LaneFinding {
  enum class Level : std::uint8_t {
    kGood,
    kAdvice,  // works, but could be better
    kBad,     // does not work, or only with an extra copy
  };
  Level level = Level::kGood;
  std::string subject;  // "mlx5_0 port 1"
  std::string text;     // the finding
  std::string fix;      // how to fix it; empty if level is kGood
};
constexpr const char* ToString(LaneFinding::Level level) {
  switch (level) {
    case LaneFinding::Level::kGood: return "ok";
    case LaneFinding::Level::kAdvice: return "advice";
    case LaneFinding::Level::kBad: break;
  }
  return "BAD";
}

// What a process on this host needs from a transport.
struct LaneNeeds {
  std::uint64_t pinned_bytes = 0;  // memory that the process registers
  std::string peer;                // IP address of the other end; empty: unknown
  bool daemon = false;             // the process is phubd, not a worker
};

struct LaneDiagnosis {
  std::vector<LaneFinding> findings;
  std::uint32_t usable_devices = 0;
};

}  // namespace phub::transport
