// bench-gloo-rank: one worker of the bench through Gloo over tcp, with all tensors in one fused
// buffer, as its users do (one exchange per tensor is several times slower).
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <string>

#include "bench/peers/gradient_buckets.h"
#include "bench/peers/peer_memory.h"
#include "bench/rank/run_rank.h"
#include "bench/rank/traffic.h"

namespace {

using namespace phub::bench;

struct GlooOptions {
  std::string algorithm = "ring";
  std::string store;
  std::string interface = "lo";
};

class GlooExchanger : public Exchanger {
 public:
  GlooExchanger(const RankArguments& arguments, const GlooOptions& options)
      : arguments_(arguments), options_(options), memory_(arguments, options.algorithm == "ring") {
    if (arguments.type != Type::kF32) Fail("bench-gloo-rank supports only --type f32");
    if (arguments.element_count() > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
      Fail("the model has more elements than Gloo supports (2^31 - 1)");
  }

  void Open(const float* initial) override {
    memory_.SetParameters(initial);
    gloo::transport::tcp::attr attributes;
    attributes.iface = options_.interface;
    std::shared_ptr<gloo::transport::Device> device =
        gloo::transport::tcp::CreateDevice(attributes);
    auto context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(arguments_.rank),
                                                               static_cast<int>(arguments_.world));
    gloo::rendezvous::FileStore store(options_.store);
    context->connectFullMesh(store, device);
    context_ = context;
    MakeAlgorithm();
  }

  void* gradients(std::size_t tensor) override { return memory_.gradients(tensor); }
  const void* results(std::size_t tensor) const override { return memory_.results(tensor); }

  void Exchange() override {
    if (!algorithm_) return RingAndUpdate(0, memory_.element_count());
    algorithm_->run();
    memory_.Update(0, memory_.element_count());
  }

  bool can_overlap() const override { return options_.algorithm == "ring"; }
  void Start(std::size_t tensor) override {
    if (!buckets_) {
      buckets_ = std::make_unique<GradientBuckets>(
          arguments_.sizes,
          [this](std::size_t first, std::uint64_t count) { RingAndUpdate(first, count); });
    }
    buckets_->Start(tensor);
  }
  void Wait(std::size_t tensor) override { buckets_->Wait(tensor); }

  void Close() override { buckets_.reset(); }
  bool overwrites_gradients() const override { return algorithm_ != nullptr; }
  void ForgetMomentum() override { memory_.ForgetMomentum(); }
  double tolerance_ulps() const override { return PeerMemory::kToleranceUlps; }
  std::map<std::string, std::string> Notes() const override {
    return {{"algorithm", options_.algorithm}};
  }

 private:
  // Sums `count` elements, starting at the tensor's first, and updates them immediately, while
  // small tensors are still in the cache.
  void RingAndUpdate(std::size_t tensor, std::uint64_t count) {
    gloo::AllreduceOptions call(context_);
    call.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    call.setInput(memory_.gradients(tensor), count);
    call.setOutput(memory_.sums(tensor), count);
    call.setReduceFunction([](void* out, const void* a, const void* b, std::size_t elements) {
      CountArithmetic(3 * elements * sizeof(float));  // two reads, one write
      gloo::sum<float>(out, a, b, elements);
    });
    gloo::allreduce(call);
    memory_.Update(tensor, count);
  }

  void MakeAlgorithm() {
    const auto count = static_cast<int>(memory_.element_count());
    if (options_.algorithm == "halving-doubling") {
      algorithm_ = std::make_unique<gloo::AllreduceHalvingDoubling<float>>(
          context_, std::vector<float*>{memory_.gradients()}, count);
    } else if (options_.algorithm == "ring-chunked") {
      algorithm_ = std::make_unique<gloo::AllreduceRingChunked<float>>(
          context_, std::vector<float*>{memory_.gradients()}, count);
    }
  }

  const RankArguments& arguments_;
  const GlooOptions& options_;
  PeerMemory memory_;
  std::shared_ptr<gloo::Context> context_;
  std::unique_ptr<gloo::Algorithm> algorithm_;  // null: use the free function gloo::allreduce
  std::unique_ptr<GradientBuckets> buckets_;    // only for a job that overlaps
};

}  // namespace

int main(int argc, char** argv) {
  GlooOptions options;
  return RunRank(
      argc, argv, "Run one worker of the bench through Gloo.",
      [&](CLI::App& app) {
        app.add_option("--algorithm", options.algorithm, "all-reduce algorithm")
            ->check(CLI::IsMember({"ring", "ring-chunked", "halving-doubling"}));
        app.add_option("--store", options.store, "folder through which ranks find each other")
            ->required();
        app.add_option("--interface", options.interface, "network interface (default lo)");
      },
      [&](const RankArguments& arguments) {
        return std::make_unique<GlooExchanger>(arguments, options);
      });
}
