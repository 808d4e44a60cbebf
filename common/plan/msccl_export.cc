#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/plan/msccl.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

struct Step {
  const char* type;
  std::int64_t offset;
  std::int64_t count;
  std::size_t wait_block = ~std::size_t{0};  // a thread block of the same GPU; all ones: none
  std::size_t wait_step = 0;
  bool is_waited_for = false;
};

struct Block {
  std::int64_t send = -1;
  std::int64_t receive = -1;
  std::vector<Step> steps;
};

class Exporter {
 public:
  Exporter(const Topology& topology, const Forest& forest)
      : topology_(topology), forest_(forest), gpus_(topology.members().size()) {}

  absl::StatusOr<std::string> Export() {
    if (!forest_.group.empty())
      return absl::InvalidArgumentError("plans of groups cannot be exported to MSCCL");
    std::int64_t divisor = forest_.share_unit;
    for (const Tree& tree : forest_.trees) divisor = std::gcd(divisor, tree.share);
    const std::int64_t chunks = forest_.share_unit / divisor;
    if (chunks > kMscclChunksMax)
      return absl::InvalidArgumentError(fmt::format(
          "the shares need {} chunks; at most {} are allowed", chunks, kMscclChunksMax));
    std::int64_t offset = 0;
    for (const Tree& tree : forest_.trees) {
      for (const auto* edges : {&tree.reduce, &tree.gather})
        for (const Edge& edge : *edges)
          if (!topology_.IsMember(edge.from) || !topology_.IsMember(edge.to))
            return absl::InvalidArgumentError(
                fmt::format("edge {}->{}: MSCCL does not support aggregating switches",
                            topology_.node(edge.from).name, topology_.node(edge.to).name));
      Collect(tree, offset, tree.share / divisor);
      offset += tree.share / divisor;
    }
    std::stable_sort(sends_.begin(), sends_.end(),
                     [](const Send& a, const Send& b) { return a.edge.step < b.edge.step; });
    for (const Send& send : sends_) Emit(send);
    return Write(chunks);
  }

 private:
  struct Send {
    Edge edge;
    bool reduces;
    std::int64_t offset;
    std::int64_t count;
  };

  void Collect(const Tree& tree, std::int64_t offset, std::int64_t count) {
    for (const bool reduces : {true, false})
      for (const Edge& edge : reduces ? tree.reduce : tree.gather)
        sends_.push_back({edge, reduces, offset, count});
  }

  // Both ends append in the same order: the k-th send of a pair matches its k-th receive.
  void Emit(const Send& send) {
    const std::uint32_t from = topology_.RankOf(send.edge.from);
    const std::uint32_t to = topology_.RankOf(send.edge.to);
    Append(from, to, true, {"s", send.offset, send.count});
    const auto written =
        Append(to, from, false, {send.reduces ? "rrc" : "r", send.offset, send.count});
    last_write_[{to, send.offset}] = written;
  }

  // Makes the step wait for the last step that wrote these chunks at this GPU, and returns where
  // the step is.
  std::pair<std::size_t, std::size_t> Append(std::uint32_t gpu, std::uint32_t peer, bool sends,
                                             Step step) {
    const auto [found, is_new] = block_of_.try_emplace({gpu, peer, sends}, gpus_[gpu].size());
    if (is_new) {
      Block& block = gpus_[gpu].emplace_back();
      (sends ? block.send : block.receive) = peer;
    }
    const auto last = last_write_.find({gpu, step.offset});
    if (last != last_write_.end() && last->second.first != found->second) {
      std::tie(step.wait_block, step.wait_step) = last->second;
      gpus_[gpu][step.wait_block].steps[step.wait_step].is_waited_for = true;
    }
    std::vector<Step>& steps = gpus_[gpu][found->second].steps;
    steps.push_back(step);
    return {found->second, steps.size() - 1};
  }

  std::string Write(std::int64_t chunks) const {
    fmt::memory_buffer out;
    const auto end = [&] { return std::back_inserter(out); };
    std::string name;
    for (const char c : forest_.planner)
      name += (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ? c : '_';
    fmt::format_to(end(),
                   "<algo name=\"{}\" proto=\"Simple\" nchannels=\"1\" nchunksperloop=\"{}\" "
                   "ngpus=\"{}\" coll=\"allreduce\" inplace=\"1\">\n",
                   name, chunks, gpus_.size());
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      fmt::format_to(end(), " <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"0\" s_chunks=\"0\">\n", gpu,
                     chunks);
      for (std::size_t block = 0; block < gpus_[gpu].size(); ++block) {
        fmt::format_to(end(), "  <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"0\">\n", block,
                       gpus_[gpu][block].send, gpus_[gpu][block].receive);
        const std::vector<Step>& steps = gpus_[gpu][block].steps;
        for (std::size_t i = 0; i < steps.size(); ++i) {
          const bool waits = steps[i].wait_block != ~std::size_t{0};
          fmt::format_to(end(),
                         "   <step s=\"{0}\" type=\"{1}\" srcbuf=\"i\" srcoff=\"{2}\" dstbuf=\"i\" "
                         "dstoff=\"{2}\" cnt=\"{3}\" depid=\"{4}\" deps=\"{5}\" hasdep=\"{6}\"/>\n",
                         i, steps[i].type, steps[i].offset, steps[i].count,
                         waits ? static_cast<std::int64_t>(steps[i].wait_block) : -1,
                         waits ? static_cast<std::int64_t>(steps[i].wait_step) : -1,
                         steps[i].is_waited_for ? 1 : 0);
        }
        fmt::format_to(end(), "  </tb>\n");
      }
      fmt::format_to(end(), " </gpu>\n");
    }
    fmt::format_to(end(), "</algo>\n");
    return fmt::to_string(out);
  }

  const Topology& topology_;
  const Forest& forest_;
  std::vector<std::vector<Block>> gpus_;
  std::vector<Send> sends_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::size_t> block_of_;
  // GPU and offset of a tree's chunks -> block and step
  std::map<std::pair<std::uint32_t, std::int64_t>, std::pair<std::size_t, std::size_t>> last_write_;
};

}  // namespace

absl::StatusOr<std::string> ForestToMsccl(const Topology& topology, const Forest& forest) {
  return Exporter(topology, forest).Export();
}

}  // namespace phub::plan
