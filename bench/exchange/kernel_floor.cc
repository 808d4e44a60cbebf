// bench-kernel-floor: the arithmetic of an exchange without any communication. It runs the daemon's
// kernels over the same bytes in the same kind of memory, chunk by chunk, in as many threads as the
// daemon has core loops. An exchange over shared memory cannot be faster.
//
// One process for all ranks: --rank 0, --world as in the exchange.
#include <CLI/CLI.hpp>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/rank/run_rank.h"
#include "common/base/mapped_memory.h"
#include "common/base/shared_memory.h"
#include "common/simd/kernels.h"

namespace {

using namespace phub::bench;
using phub::MappedMemory;
using phub::SharedMemory;

struct FloorOptions {
  std::uint32_t threads = 1;
  std::uint32_t chunk_bytes = 128 * 1024;  // the daemon's default
  bool keep_sums = false;
};

// Tensors begin at cache lines, as the daemon lays out keys.
constexpr std::uint64_t kTensorAlignment = 64;
std::uint64_t Aligned(std::uint64_t bytes) {
  return (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
}

// If a thread's part of the sums has this size or more, the daemon stores it past the caches.
constexpr std::uint64_t kStreamedBytes = 8 * 1024 * 1024;

SharedMemory Shared(std::uint64_t bytes, SharedMemory::Others others) {
  absl::StatusOr<SharedMemory> memory = SharedMemory::Create("phub-floor", bytes, others);
  if (!memory.ok()) Fail(std::string(memory.status().message()));
  return *std::move(memory);
}

MappedMemory Private(std::uint64_t bytes) {
  MappedMemory memory = MappedMemory::Allocate(bytes, MappedMemory::Backing::kPrefault);
  if (!memory) Fail("out of memory");
  return memory;
}

class FloorExchanger : public Exchanger {
 public:
  FloorExchanger(const RankArguments& arguments, const FloorOptions& options)
      : arguments_(arguments), options_(options), barrier_(options.threads) {}

  ~FloorExchanger() override {
    stopping_ = true;
    if (!threads_.empty()) barrier_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  void Open(const float* initial) override {
    LayOut();
    for (std::uint32_t rank = 0; rank < arguments_.world; ++rank)
      gradients_.push_back(Shared(bytes_, SharedMemory::Others::kWrite));
    if (arguments_.work == Work::kUpdate) {
      parameters_ = Shared(bytes_, SharedMemory::Others::kRead);
      momentum_ = Private(element_count_ * sizeof(float));
      if (has_masters()) masters_ = Private(element_count_ * sizeof(float));
    } else {
      for (std::uint32_t rank = 0; rank < arguments_.world; ++rank)
        sums_.push_back(Shared(bytes_, SharedMemory::Others::kWrite));
      if (options_.keep_sums) parameters_ = Shared(bytes_, SharedMemory::Others::kRead);
    }
    Fill(initial);
    for (std::uint32_t thread = 1; thread < options_.threads; ++thread)
      threads_.emplace_back([this, thread] { RunThread(thread); });
  }

  void* gradients(std::size_t tensor) override { return gradients_[0].data() + offsets_[tensor]; }
  const void* results(std::size_t tensor) const override {
    return (sums_.empty() ? parameters_ : sums_[0]).data() + offsets_[tensor];
  }

  void Exchange() override {
    ++step_;
    if (options_.threads == 1) return RunChunks(0);
    barrier_.arrive_and_wait();
    RunChunks(0);
    barrier_.arrive_and_wait();
  }

  void Close() override {}
  std::map<std::string, std::string> Notes() const override {
    return {{"threads", std::to_string(options_.threads)}, {"simd", phub::simd::TargetName()}};
  }

 private:
  struct Chunk {
    std::uint64_t offset = 0;         // byte offset in gradients, parameters and sums
    std::uint64_t first_element = 0;  // index in momentum and masters
    std::uint64_t elements = 0;
  };

  bool has_masters() const { return arguments_.type != Type::kF32; }

  void LayOut() {
    const std::uint64_t element_bytes = ElementBytes(arguments_.type);
    const std::uint64_t chunk_elements = options_.chunk_bytes / sizeof(float);
    for (const std::uint64_t size : arguments_.sizes) {
      offsets_.push_back(bytes_);
      for (std::uint64_t first = 0; first < size; first += chunk_elements) {
        chunks_.push_back({bytes_ + first * element_bytes, element_count_ + first,
                           std::min(chunk_elements, size - first)});
      }
      bytes_ += Aligned(size * element_bytes);
      element_count_ += size;
    }
  }

  void Fill(const float* initial) {
    const Values values(arguments_.world, arguments_.type, arguments_.work);
    std::uint64_t first_index = 0;
    for (std::size_t tensor = 0; tensor < arguments_.sizes.size(); ++tensor) {
      const std::uint64_t count = arguments_.sizes[tensor];
      for (std::uint32_t rank = 0; rank < arguments_.world; ++rank) {
        values.FillGradients(rank, first_index, count, gradients_[rank].data() + offsets_[tensor]);
      }
      first_index += count;
      if (sums_.empty() && !has_masters()) {
        std::memcpy(parameters_.data() + offsets_[tensor], initial, count * sizeof(float));
        initial += count;
      }
    }
    if (masters_) std::memcpy(masters_.data(), initial, element_count_ * sizeof(float));
  }

  void RunThread(std::uint32_t thread) {
    phub::simd::SetFloatingPointMode();
    for (;;) {
      barrier_.arrive_and_wait();
      if (stopping_) return;
      RunChunks(thread);
      barrier_.arrive_and_wait();
    }
  }

  void RunChunks(std::uint32_t thread) {
    for (std::size_t i = thread; i < chunks_.size(); i += options_.threads) Apply(chunks_[i]);
  }

  void Apply(const Chunk& chunk) {
    using phub::simd::ElementType;
    constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBf16};
    const bool update = arguments_.work == Work::kUpdate;
    const ElementType wire = kTypes[static_cast<std::size_t>(arguments_.type)];
    const phub::simd::Round round = {
        .wire = wire,
        .type = update ? ElementType::kF32 : wire,
        .reply = wire,
        .reduction = update ? phub::simd::Reduction::kMean : phub::simd::Reduction::kSum,
        .optimizer = update ? phub::simd::Optimizer::kMomentum : phub::simd::Optimizer::kNone,
        .ranks = arguments_.world,
        .arguments = {.learning_rate = kLearningRate, .momentum = kMomentum, .step = step_}};
    std::vector<const std::byte*> inputs(arguments_.world);
    for (std::uint32_t rank = 0; rank < arguments_.world; ++rank)
      inputs[rank] = gradients_[rank].data() + chunk.offset;
    std::vector<std::byte*> replies;
    for (const SharedMemory& sums : sums_) replies.push_back(sums.data() + chunk.offset);
    phub::simd::RoundMemory memory;
    if (update) {
      const std::uint64_t state_offset = chunk.first_element * sizeof(float);
      memory.state[0] = momentum_.data() + state_offset;
      memory.next_parameters = parameters_.data() + chunk.offset;
      if (has_masters()) {
        replies.push_back(memory.next_parameters);
        memory.next_parameters = masters_.data() + state_offset;
      }
      memory.parameters = memory.next_parameters;
    } else if (parameters_) {
      memory.next_parameters = parameters_.data() + chunk.offset;
    }
    memory.replies = replies;
    memory.streams_results = !update && bytes_ > kStreamedBytes * options_.threads;
    phub::simd::ApplyRound(round, {.inputs = inputs}, chunk.elements, memory);
  }

  const RankArguments& arguments_;
  const FloorOptions& options_;
  std::vector<Chunk> chunks_;
  std::vector<std::uint64_t> offsets_;  // the byte offset of each tensor
  std::uint64_t bytes_ = 0;
  std::uint64_t element_count_ = 0;
  std::vector<SharedMemory> gradients_;
  SharedMemory parameters_;
  std::vector<SharedMemory> sums_;
  MappedMemory momentum_;
  MappedMemory masters_;
  std::uint64_t step_ = 0;
  std::barrier<> barrier_;
  bool stopping_ = false;  // published by the barrier, as is step_
  std::vector<std::thread> threads_;
};

}  // namespace

int main(int argc, char** argv) {
  FloorOptions options;
  return RunRank(
      argc, argv, "Run only the arithmetic of an exchange.",
      [&](CLI::App& app) {
        app.add_option("--threads", options.threads,
                       "number of threads, as the daemon's core loops")
            ->check(CLI::Range(1u, 256u));
        app.add_option("--chunk-bytes", options.chunk_bytes, "size of a chunk in bytes of f32")
            ->check(CLI::Range(64u, 1u << 30));
        app.add_flag("--keep-sums", options.keep_sums,
                     "store one more copy of an all-reduce's sums, as a daemon does");
      },
      [&](const RankArguments& arguments) {
        phub::simd::SetFloatingPointMode();
        return std::make_unique<FloorExchanger>(arguments, options);
      });
}
