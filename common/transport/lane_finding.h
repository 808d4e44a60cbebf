// What a host has, or lacks, for lanes of one transport, for `phubctl doctor`. Plain data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phub::transport {

struct LaneFinding {
  enum class Level : std::uint8_t {
    kGood,
    kAdvice,  // works, and could be better
    kBad,     // does not work, or copies instead
  };
  Level level = Level::kGood;
  std::string subject;  // "mlx5_0 port 1"
  std::string text;     // what is so
  std::string fix;      // what to do; empty if it is good
};
constexpr const char* ToString(LaneFinding::Level level) {
  switch (level) {
    case LaneFinding::Level::kGood: return "ok";
    case LaneFinding::Level::kAdvice: return "advice";
    case LaneFinding::Level::kBad: break;
  }
  return "BAD";
}

// What a process on this host will ask of a transport.
struct LaneNeeds {
  std::uint64_t pinned_bytes = 0;  // memory that it registers
  std::string peer;                // IP address of the other end; empty: not known
  bool daemon = false;             // the process is phubd, not a worker
};

struct LaneDiagnosis {
  std::vector<LaneFinding> findings;
  std::uint32_t usable_devices = 0;
};

}  // namespace phub::transport
