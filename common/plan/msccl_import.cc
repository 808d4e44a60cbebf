#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/msccl.h"
#include "common/plan/msccl_machine.h"
#include "common/plan/routes.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

class Importer {
 public:
  explicit Importer(const Topology& topology)
      : topology_(topology), paths_(forest_), router_(topology) {}

  absl::StatusOr<Forest> Import(const MscclProgram& program, std::vector<MscclChunk> chunks) {
    forest_.planner = program.name;
    forest_.topology = topology_.name();
    forest_.share_unit = program.chunk_count;
    if (program.collective == "allgather") MirrorResults(chunks);
    if (program.collective == "reduce_scatter") {
      if (absl::Status status = MirrorPartials(chunks); !status.ok()) return status;
    }
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].home < 0)
        return absl::InvalidArgumentError(
            fmt::format("not a forest: the sum of chunk {} is never completed", i));
      edge_count_ += chunks[i].partials.size() + chunks[i].results.size();
      if (edge_count_ > kEdgesMax)
        return absl::InvalidArgumentError(
            fmt::format("the program has more than {} transfers", kEdgesMax));
      if (i > 0 && IsSame(chunks[i - 1], chunks[i])) {
        ++forest_.trees.back().share;
        continue;
      }
      Tree& tree = forest_.trees.emplace_back();
      tree.home = Member(static_cast<std::uint32_t>(chunks[i].home));
      tree.share = 1;
      if (absl::Status status = AddEdges(chunks[i].partials, tree.reduce); !status.ok())
        return status;
      if (absl::Status status = AddEdges(chunks[i].results, tree.gather); !status.ok())
        return status;
    }
    return std::move(forest_);
  }

 private:
  NodeIndex Member(std::uint32_t gpu) const { return topology_.members()[gpu]; }

  static bool IsSame(const MscclChunk& a, const MscclChunk& b) {
    const auto equal = [](const std::vector<MscclTransfer>& x,
                          const std::vector<MscclTransfer>& y) {
      return std::equal(x.begin(), x.end(), y.begin(), y.end(),
                        [](const MscclTransfer& m, const MscclTransfer& n) {
                          return m.from == n.from && m.to == n.to && m.step == n.step;
                        });
    };
    return a.home == b.home && equal(a.partials, b.partials) && equal(a.results, b.results);
  }

  static std::uint32_t StepsOf(const std::vector<MscclChunk>& chunks) {
    std::uint32_t steps = 0;
    for (const MscclChunk& chunk : chunks)
      for (const auto* transfers : {&chunk.partials, &chunk.results})
        for (const MscclTransfer& transfer : *transfers) steps = std::max(steps, transfer.step + 1);
    return steps;
  }

  // Adds the reduce phase of an all-gather program: the reversed gather phase, before it.
  static void MirrorResults(std::vector<MscclChunk>& chunks) {
    const std::uint32_t steps = StepsOf(chunks);
    for (MscclChunk& chunk : chunks) {
      for (MscclTransfer& transfer : chunk.results) {
        chunk.partials.push_back({transfer.to, transfer.from, steps - 1 - transfer.step});
        transfer.step += steps;
      }
    }
  }

  // Adds the gather phase of a reduce-scatter program: the reversed reduce phase, after it.
  static absl::Status MirrorPartials(std::vector<MscclChunk>& chunks) {
    const std::uint32_t steps = StepsOf(chunks);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      MscclChunk& chunk = chunks[i];
      if (!chunk.results.empty())
        return absl::InvalidArgumentError(
            fmt::format("not a forest: gpu {2} sends the complete sum of chunk {0}; in a "
                        "reduce_scatter it must stay at gpu {1}",
                        i, chunk.home, chunk.results.front().from));
      for (const MscclTransfer& transfer : chunk.partials)
        chunk.results.push_back({transfer.to, transfer.from, 2 * steps - 1 - transfer.step});
    }
    return absl::OkStatus();
  }

  absl::Status AddEdges(const std::vector<MscclTransfer>& transfers, std::vector<Edge>& edges) {
    for (const MscclTransfer& transfer : transfers) {
      const NodeIndex from = Member(transfer.from), to = Member(transfer.to);
      if (from == to)
        return absl::InvalidArgumentError(fmt::format("gpu {} sends to itself", transfer.from));
      const auto [found, is_new] = known_.try_emplace({from, to});
      if (is_new) {
        std::optional<Path> path = router_.Route(from, to);
        if (!path)
          return absl::InvalidArgumentError(
              fmt::format("{}: every path from {} to {} passes through other members",
                          topology_.name(), topology_.node(from).name, topology_.node(to).name));
        found->second = paths_.Intern(*std::move(path));
      }
      edges.push_back({from, to, transfer.step, found->second});
    }
    return absl::OkStatus();
  }

  const Topology& topology_;
  Forest forest_;
  PathTable paths_;
  Router router_;
  std::map<std::pair<NodeIndex, NodeIndex>, PathIndex> known_;
  std::size_t edge_count_ = 0;
};

}  // namespace

absl::StatusOr<Forest> ParseMsccl(const Topology& topology, std::string_view xml) {
  const absl::StatusOr<MscclProgram> program = ReadMsccl(xml);
  if (!program.ok()) return program.status();
  const bool is_all_reduce = program->collective == "allreduce";
  if (!is_all_reduce && program->collective != "allgather" &&
      program->collective != "reduce_scatter")
    return absl::InvalidArgumentError(
        fmt::format("coll=\"{}\" is not supported; use allreduce, allgather or reduce_scatter",
                    program->collective));
  if (program->gpus.size() != topology.members().size())
    return absl::InvalidArgumentError(
        fmt::format("the program is for {} GPUs, but {} has {} members", program->gpus.size(),
                    topology.name(), topology.members().size()));
  if (!is_all_reduce && program->chunk_count % static_cast<std::int64_t>(program->gpus.size()) != 0)
    return absl::InvalidArgumentError("nchunksperloop is not a multiple of ngpus");
  absl::StatusOr<std::vector<MscclChunk>> chunks = ExecuteMsccl(*program);
  if (!chunks.ok()) return chunks.status();
  return Importer(topology).Import(*program, *std::move(chunks));
}

}  // namespace phub::plan
