// bench-phub-rank: one worker of the bench through libphub. Like a training program, it has a key
// per tensor, calls PushPull() on each and Wait() on each.
#include <phub/client.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/rank/run_rank.h"

namespace {

using namespace phub::bench;

struct PhubOptions {
  std::string endpoint;
  std::string tenant;
  phub::JobOptions job;
  std::string order = "forward";
  std::string priority = "forward";
};

phub::ElementType WireType(Type type) {
  switch (type) {
    case Type::kF32: return phub::f32;
    case Type::kF16: return phub::f16;
    case Type::kBf16: return phub::bf16;
  }
  Fail("unknown type");
}

void Require(const phub::Status& status) {
  if (!status.ok()) Fail(phub::ToString(status));
}
template <typename T>
T Required(phub::Result<T> result) {
  Require(result.status());
  return *std::move(result);
}

// Memory of a program that does not use phub's buffers: from the heap, aligned as in tensor
// libraries.
class UserMemory {
 public:
  explicit UserMemory(std::size_t bytes)
      : data_(std::aligned_alloc(
            kAlignmentBytes, (bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes)) {
    if (data_ == nullptr) Fail("out of memory");
  }
  void* data() const { return data_.get(); }

 private:
  static constexpr std::size_t kAlignmentBytes = 64;
  struct Free {
    void operator()(void* data) const { std::free(data); }
  };
  std::unique_ptr<void, Free> data_;
};

class PhubExchanger : public Exchanger {
 public:
  PhubExchanger(const RankArguments& arguments, const PhubOptions& options)
      : arguments_(arguments), options_(options), wire_(WireType(arguments.type)) {}

  void Open(const float* initial) override {
    phub::Session session = Required(phub::Connect(options_.endpoint, {.tenant = options_.tenant}));
    job_ = std::make_unique<phub::Job>(Required(session.Join(options_.job)));
    AddKeys();
    handles_.resize(keys_.size());
    if (arguments_.memory == Memory::kUser) AllocateUserMemory();
    if (initial == nullptr) return;
    for (phub::Key& key : keys_) {
      Require(job_->Initialize(key, {initial, key.element_count(), phub::f32}));
      initial += key.element_count();
    }
  }

  void* gradients(std::size_t tensor) override {
    if (arguments_.memory == Memory::kUser) return user_gradients_[tensor].data();
    return keys_[tensor].gradients().data;
  }

  const void* results(std::size_t tensor) const override {
    if (arguments_.memory == Memory::kUser) return user_results_[tensor].data();
    return keys_[tensor].parameters().data;
  }

  void Exchange() override {
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      const std::size_t tensor = options_.order == "forward" ? i : keys_.size() - 1 - i;
      handles_[tensor] = PushPull(tensor);
    }
    for (const phub::Handle& handle : handles_) Require(handle.Wait());
  }

  bool can_overlap() const override { return true; }
  void Start(std::size_t tensor) override { handles_[tensor] = PushPull(tensor); }
  void Wait(std::size_t tensor) override { Require(handles_[tensor].Wait()); }

  void Close() override {
    handles_.clear();
    transports_ = job_->transports();
    Require(job_->Leave());
  }

  std::map<std::string, std::string> Notes() const override {
    return {{"transports", transports_}};
  }

 private:
  void AddKeys() {
    std::vector<phub::KeySpec> specs;
    for (std::size_t i = 0; i < arguments_.sizes.size(); ++i) {
      phub::KeySpec spec{.name = "tensor" + std::to_string(i),
                         .element_count = arguments_.sizes[i]};
      // Without --priority backward, libphub's default applies: the key added first is sent first.
      if (options_.priority == "backward") spec.options.priority = static_cast<std::int32_t>(i);
      if (arguments_.work == Work::kUpdate) {
        spec.optimizer = phub::Momentum{.learning_rate = kLearningRate, .momentum = kMomentum};
        spec.options.gradient_type = wire_;  // with f32 masters
        spec.options.parameter_type = wire_;
      } else {
        spec.type = wire_;
      }
      specs.push_back(std::move(spec));
    }
    keys_ = Required(job_->AddKeys(specs));
  }

  void AllocateUserMemory() {
    for (const std::uint64_t count : arguments_.sizes) {
      user_gradients_.emplace_back(count * ElementBytes(arguments_.type));
      user_results_.emplace_back(count * ElementBytes(arguments_.type));
    }
  }

  phub::Handle PushPull(std::size_t tensor) {
    if (arguments_.memory == Memory::kLibrary) return keys_[tensor].PushPull();
    const std::uint64_t count = arguments_.sizes[tensor];
    return keys_[tensor].PushPull({user_gradients_[tensor].data(), count, wire_},
                                  {user_results_[tensor].data(), count, wire_});
  }

  const RankArguments& arguments_;
  const PhubOptions& options_;
  const phub::ElementType wire_;
  std::unique_ptr<phub::Job> job_;
  std::vector<phub::Key> keys_;
  std::vector<phub::Handle> handles_;
  std::vector<UserMemory> user_gradients_;
  std::vector<UserMemory> user_results_;
  std::string transports_;
};

}  // namespace

int main(int argc, char** argv) {
  PhubOptions options;
  const auto add_options = [&](CLI::App& app) {
    app.add_option("--endpoint", options.endpoint, "the daemon's host:port")->required();
    app.add_option("--job", options.job.job, "name of the job")->required();
    app.add_option("--tenant", options.tenant, "the job's tenant (default: the default tenant)");
    app.add_option("--transport", options.job.transport, "transport of the data lanes")
        ->transform(CLI::CheckedTransformer(std::map<std::string, phub::TransportChoice>{
            {"auto", phub::TransportChoice::kAuto},
            {"tcp", phub::TransportChoice::kTcp},
            {"shm", phub::TransportChoice::kSharedMemory}}));
    app.add_option("--chunk-bytes", options.job.chunk_bytes,
                   "size of a chunk (0: the daemon's default)");
    app.add_option("--staging-bytes", options.job.staging_bytes,
                   "staging memory of a lane (0: the daemon's default)");
    app.add_option("--sum", options.job.sum, "how gradients are summed")
        ->transform(CLI::CheckedTransformer(std::map<std::string, phub::Sum>{
            {"float", phub::Sum::kFloat}, {"fixed", phub::Sum::kFixed}}));
    app.add_option("--plan", options.job.plan,
                   "run in all racks with this plan (default: in one rack)");
    app.add_option("--order", options.order, "order in which tensors are pushed")
        ->check(CLI::IsMember({"forward", "backward"}));
    app.add_option("--priority", options.priority, "tensors to send first when several are queued")
        ->check(CLI::IsMember({"forward", "backward"}));
  };
  return RunRank(argc, argv, "Run one worker of the bench through libphub.", add_options,
                 [&](const RankArguments& arguments) {
                   options.job.rank = arguments.rank;
                   options.job.world_size = arguments.world;
                   return std::make_unique<PhubExchanger>(arguments, options);
                 });
}
