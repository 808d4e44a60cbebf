// Networks of servers with GPUs, in which members relay: NVLink meshes and
// DGX-2.
#pragma once

#include <string>
#include <utility>

#include "common/plan/topology.h"

namespace phub::plan {

// The networks that TE-CCL (Liu et al., SIGCOMM 2024) was measured on. A unit
// link has 12.5 GB/s.
class GpuServers {
 public:
  explicit GpuServers(std::string name) { parts_.name = std::move(name); }

  std::uint32_t Add(NodeKind kind) {
    const auto index = static_cast<std::uint32_t>(parts_.nodes.size());
    parts_.nodes.push_back({(kind == NodeKind::kMember ? "g" : "s") + std::to_string(index), kind});
    return index;
  }
  void Link(std::uint32_t from, std::uint32_t to, std::int64_t units, std::int64_t latency_ns) {
    parts_.links.push_back({NodeIndex{from}, NodeIndex{to}, units, latency_ns});
  }
  Topology Build() const { return *Topology::Create(parts_); }

 private:
  TopologyParts parts_;
};

// Azure NDv2: 8 GPUs with direct links, some of them double. GPU 0 sends to
// other servers and GPU 1 receives, over a direct link between two servers and
// over a switch between more.
inline Topology Ndv2(std::uint32_t servers) {
  constexpr std::int64_t kLinks[8][8] = {{0, 2, 1, 1, 2, 0, 0, 0}, {2, 0, 1, 2, 0, 1, 0, 0},
                                         {1, 1, 0, 2, 0, 0, 2, 0}, {1, 2, 2, 0, 0, 0, 0, 1},
                                         {2, 0, 0, 0, 0, 2, 1, 1}, {0, 1, 0, 0, 2, 0, 1, 2},
                                         {0, 0, 2, 0, 1, 1, 0, 2}, {0, 0, 0, 1, 1, 2, 2, 0}};
  GpuServers net("NDv2x" + std::to_string(servers));
  for (std::uint32_t i = 0; i < 8 * servers; ++i) net.Add(NodeKind::kMember);
  for (std::uint32_t begin = 0; begin < 8 * servers; begin += 8)
    for (std::uint32_t a = 0; a < 8; ++a)
      for (std::uint32_t b = 0; b < 8; ++b)
        if (kLinks[a][b] > 0) net.Link(begin + a, begin + b, 2 * kLinks[a][b], 700);
  if (servers == 1) return net.Build();
  if (servers == 2) {
    net.Link(0, 9, 1, 1300);
    net.Link(8, 1, 1, 1300);
    return net.Build();
  }
  const std::uint32_t hub = net.Add(NodeKind::kSwitch);
  for (std::uint32_t begin = 0; begin < 8 * servers; begin += 8) {
    net.Link(begin, hub, 1, 1300);
    net.Link(hub, begin + 1, 1, 1300);
  }
  return net.Build();
}

// Two NVIDIA DGX-2: 16 GPUs on a switch; each GPU with an odd number sends to
// one of the other server.
inline Topology Dgx2() {
  GpuServers net("DGX2x2");
  for (std::uint32_t i = 0; i < 32; ++i) net.Add(NodeKind::kMember);
  for (std::uint32_t server = 0; server < 2; ++server) {
    const std::uint32_t hub = net.Add(NodeKind::kSwitch);
    for (std::uint32_t i = 16 * server; i < 16 * server + 16; ++i) {
      net.Link(i, hub, 10, 350);
      net.Link(hub, i, 10, 350);
      if (i % 2 == 1) net.Link(i, (i + 15) % 32, 1, 2600);
    }
  }
  return net.Build();
}

}  // namespace phub::plan
