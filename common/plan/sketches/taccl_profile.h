// Reads TACCL's profile of a server with GPUs (Shah et al., "TACCL: Guiding Collective Algorithm
// Synthesis using Communication Sketches", NSDI 2023): which GPUs have links, and what they cost.
// Pure: it opens no file. Any thread.
//
//   { "name": "NDv2_1MB",
//     "gpus_per_node": 8, "nics_per_node": 1,
//     "alpha": 0.3,                        latency of a link within a node, in time units
//     "node_betas_list": [23, 46],         time units in which a link sends one chunk
//     "node_invbws_list": [23, 46],        alpha + beta, within 1 of it: TACCL rounds
//     "remote_alpha": 2.6, "remote_beta": 105, "remote_invbw": 107 }     of a NIC
//
// A profile of its own kind of node (kCustom) has the matrices "links" (number of parallel links),
// "betas" and "invbws", indexed [receiver][sender], instead of the two lists.
//
// TACCL scales the costs for small chunks so that they do not round to 0. The published profiles
// end in _1KB (times 100) and _32KB (times 10); the time unit is then 10 ns or 100 ns, otherwise
// 1 us. A profile whose name ends in a size is for chunks of this size, with 1 KB = 1024 B;
// otherwise a chunk is 1 MiB.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/units.h"
#include "common/plan/rational.h"

namespace phub::plan {

inline constexpr std::size_t kSketchTextBytesMax = std::size_t{4} << 20;
inline constexpr std::uint32_t kGpusPerNodeMax = 512;

enum class NodeModel : std::uint8_t {
  kNdv2,         // Azure NDv2: 8 GPUs with direct links, 1 NIC
  kDgx2,         // NVIDIA DGX-2: 16 GPUs on a switch, 8 NICs
  kHubAndSpoke,  // any number of GPUs on a switch
  kCustom,       // links are listed in the profile
};
// "NDv2", "DGX2", "HubAndSpoke", "custom": TACCL's names.
std::optional<NodeModel> ParseNodeModel(std::string_view text);

// What a profile does not say itself. Absent: derived from its name and fields.
struct TacclUnits {
  std::optional<NodeModel> model = std::nullopt;
  std::optional<std::int64_t> chunk_bytes = std::nullopt;
  std::optional<DurationNs> time_unit_ns = std::nullopt;
};

struct TacclProfile {
  struct Remote {
    std::uint32_t nics = 0;  // per node
    Rational alpha;
    Rational beta;  // of one NIC
  };

  // The time of a chunk on the link, without latency. 0: there is no such link. Parallel links
  // count as one.
  const Rational& Beta(std::uint32_t from, std::uint32_t to) const {
    return betas[to * gpus + from];
  }

  std::string name;
  std::uint32_t gpus = 0;  // per node
  Rational alpha;
  std::vector<Rational> betas;   // by receiver, then sender
  std::optional<Remote> remote;  // absent: the profile is for one node
  std::int64_t chunk_bytes = 0;
  DurationNs time_unit_ns = 0;
};

// Errors name the field and the reason: "node_betas_list[1]: must be a number above 0".
absl::StatusOr<TacclProfile> ParseTacclProfile(std::string_view text, const TacclUnits& units);

}  // namespace phub::plan
