// bench-openmpi-rank: one worker of the bench through MPI_Allreduce, started by mpirun. MPI
// provides rank and world; mpirun's options select the transport.
#include <mpi.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "bench/peers/peer_memory.h"
#include "bench/rank/run_rank.h"

namespace {

using namespace phub::bench;

void Require(int code, const char* call) {
  if (code != MPI_SUCCESS) Fail(std::string(call) + " failed");
}

class OpenMpiExchanger : public Exchanger {
 public:
  OpenMpiExchanger(const RankArguments& arguments, bool fused)
      : memory_(arguments, true), fused_(fused) {
    if (arguments.type != Type::kF32) Fail("Open MPI supports only --type f32");
  }

  void Open(const float* initial) override { memory_.SetParameters(initial); }
  void* gradients(std::size_t tensor) override { return memory_.gradients(tensor); }
  const void* results(std::size_t tensor) const override { return memory_.results(tensor); }

  void Exchange() override {
    if (fused_) return AllreduceAndUpdate(0, memory_.element_count());
    // Updates each tensor right after its sum, while the sum is in the cache.
    for (std::size_t i = 0; i < memory_.tensor_count(); ++i) AllreduceAndUpdate(i, memory_.size(i));
  }

  void Close() override { Require(MPI_Finalize(), "MPI_Finalize"); }
  double tolerance_ulps() const override { return PeerMemory::kToleranceUlps; }
  std::map<std::string, std::string> Notes() const override {
    return {{"buffers", fused_ ? "one fused" : "per tensor"}};
  }

 private:
  void AllreduceAndUpdate(std::size_t tensor, std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
      Fail("a buffer has more elements than MPI supports (2^31 - 1)");
    Require(MPI_Allreduce(memory_.gradients(tensor), memory_.sums(tensor), static_cast<int>(count),
                          MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD),
            "MPI_Allreduce");
    memory_.Update(tensor, count);
  }

  PeerMemory memory_;
  const bool fused_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--build-info")
    return RunRank(argc, argv, "", {}, {});
  Require(MPI_Init(&argc, &argv), "MPI_Init");
  int rank = 0;
  Require(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  // mpirun has one command line for all ranks, so the harness cannot pass each rank its number.
  std::vector<std::string> arguments(argv, argv + argc);
  for (std::string& argument : arguments) {
    if (const std::size_t at = argument.find("%rank%"); at != std::string::npos)
      argument.replace(at, 6, std::to_string(rank));
  }
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  bool fused = false;
  return RunRank(
      argc, pointers.data(), "Run one worker of the bench through Open MPI.",
      [&](CLI::App& app) { app.add_flag("--fused", fused, "sum all tensors in one buffer"); },
      [&](const RankArguments& rank_arguments) {
        return std::make_unique<OpenMpiExchanger>(rank_arguments, fused);
      });
}
