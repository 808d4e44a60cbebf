#include "common/plan/msccl_machine.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "common/plan/forest.h"
#include "fmt/core.h"

namespace phub::plan {
namespace {

// Limit for the memory of all values. A value takes one byte per GPU.
constexpr std::size_t kValueBytesMax = std::size_t{1} << 28;

struct Value {
  std::int64_t chunk = 0;
  bool is_complete = false;
  std::vector<std::uint8_t> contributions;  // by GPU; empty if it is complete from the start
};
// A value and the first step in which it is available.
struct Held {
  std::shared_ptr<const Value> value;  // null: never written
  std::uint32_t ready = 0;
};

class Machine {
 public:
  explicit Machine(const MscclProgram& program)
      : program_(program),
        gathers_(program.collective == "allgather"),
        scatters_(program.collective == "reduce_scatter"),
        own_(program.chunk_count / static_cast<std::int64_t>(program.gpus.size())),
        chunks_(static_cast<std::size_t>(program.chunk_count)) {}

  absl::StatusOr<std::vector<MscclChunk>> Execute() {
    if (absl::Status status = SetUp(); !status.ok()) return status;
    while (!awake_.empty() && error_.ok()) {
      const std::size_t block = awake_.front();
      awake_.pop_front();
      blocks_[block].is_awake = false;
      while (error_.ok() && RunStep(block)) {
      }
    }
    if (!error_.ok()) return error_;
    for (const Block& block : blocks_)
      if (block.next < block.program->steps.size())
        return absl::InvalidArgumentError(fmt::format(
            "line {}: gpu {} never gets past this step: it waits for a later step or for a missing "
            "send",
            block.program->steps[block.next].line, block.gpu));
    return CheckResults();
  }

 private:
  struct Block {
    const MscclBlock* program;
    std::size_t gpu;
    std::size_t next = 0;              // index of the next step
    std::uint32_t clock = 0;           // earliest step of its next send
    std::vector<std::uint32_t> ends;   // clock after each executed step
    std::vector<std::size_t> waiters;  // blocks to wake after its next step
    bool is_awake = true;
  };
  using Pair = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // from, to, channel

  absl::Status SetUp() {
    const std::size_t gpus = program_.gpus.size();
    std::size_t places = 0;
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      for (const std::int64_t count : program_.gpus[gpu].chunks)
        places += static_cast<std::size_t>(std::max(count, program_.chunk_count));
      first_block_.push_back(blocks_.size());
      for (const MscclBlock& block : program_.gpus[gpu].blocks) {
        if (block.receive >= 0 &&
            !receiver_.emplace(Pair{block.receive, gpu, block.channel}, blocks_.size()).second)
          return absl::InvalidArgumentError(
              fmt::format("gpu {}: two thread blocks receive from gpu {} on channel {}", gpu,
                          block.receive, block.channel));
        awake_.push_back(blocks_.size());
        blocks_.push_back({&block, gpu, 0, 0, {}, {}, true});
      }
    }
    if (places * gpus > kValueBytesMax)
      return absl::InvalidArgumentError("the program has too many GPUs and chunks to be checked");
    memory_.resize(gpus);
    for (std::size_t gpu = 0; gpu < gpus; ++gpu) {
      for (std::size_t buffer = 0; buffer < 3; ++buffer)
        memory_[gpu][buffer].resize(static_cast<std::size_t>(
            std::max(program_.gpus[gpu].chunks[buffer], program_.chunk_count)));
      for (std::int64_t i = 0; i < (gathers_ ? own_ : program_.chunk_count); ++i) {
        auto value = std::make_shared<Value>();
        value->chunk = gathers_ ? static_cast<std::int64_t>(gpu) * own_ + i : i;
        value->is_complete = gathers_;
        if (gathers_) {
          chunks_[static_cast<std::size_t>(value->chunk)].home = static_cast<std::int64_t>(gpu);
        } else {
          value->contributions.assign(gpus, 0);
          value->contributions[gpu] = 1;
        }
        *Find(gpu, {'i', i}) = {value, 0};
      }
      if (absl::Status status = CopyInputs(gpu); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CopyInputs(std::size_t gpu) {
    for (const MscclCopy& copy : program_.gpus[gpu].copies) {
      const Held* source = Find(gpu, {'i', copy.input});
      Held* target = Find(gpu, {'o', copy.output});
      if (source == nullptr || target == nullptr)
        return absl::InvalidArgumentError(
            fmt::format("line {}: the copied chunk is outside the buffer", copy.line));
      if (source->value == nullptr)
        return absl::InvalidArgumentError(
            fmt::format("line {}: the copied chunk is no part of the input", copy.line));
      *target = Held(*source);
    }
    return absl::OkStatus();
  }

  // For in-place programs input and output share memory: the smaller one is a part of the other.
  Held* Find(std::size_t gpu, MscclPlace place) {
    std::size_t buffer = place.buffer == 'i' ? 0 : place.buffer == 'o' ? 1 : 2;
    std::int64_t offset = place.offset;
    if (program_.in_place && buffer == (scatters_ ? 1u : 0u)) {
      if (gathers_ || scatters_) offset += static_cast<std::int64_t>(gpu) * own_;
      buffer = 1 - buffer;
    }
    std::vector<Held>& memory = memory_[gpu][buffer];
    if (place.offset < 0 || offset >= static_cast<std::int64_t>(memory.size())) return nullptr;
    return &memory[static_cast<std::size_t>(offset)];
  }

  bool Fail(const MscclStep& step, std::string_view what) {
    if (error_.ok())
      error_ = absl::InvalidArgumentError(fmt::format("line {}: {}", step.line, what));
    return false;
  }

  void Wake(std::size_t block) {
    if (blocks_[block].is_awake) return;
    blocks_[block].is_awake = true;
    awake_.push_back(block);
  }

  static bool Receives(MscclOperation o) {
    return o == MscclOperation::kReceive || o == MscclOperation::kReceiveCopySend ||
           o == MscclOperation::kReceiveReduceSend || o == MscclOperation::kReceiveReduceCopy ||
           o == MscclOperation::kReceiveReduceCopySend;
  }
  static bool Sends(MscclOperation o) {
    return o == MscclOperation::kSend || o == MscclOperation::kReceiveCopySend ||
           o == MscclOperation::kReceiveReduceSend || o == MscclOperation::kReceiveReduceCopySend;
  }
  static bool Reduces(MscclOperation o) {
    return o == MscclOperation::kReceiveReduceSend || o == MscclOperation::kReceiveReduceCopy ||
           o == MscclOperation::kReceiveReduceCopySend || o == MscclOperation::kReduce;
  }

  // False if the block must wait.
  bool RunStep(std::size_t index) {
    Block& block = blocks_[index];
    if (block.next == block.program->steps.size()) return false;
    const MscclStep& step = block.program->steps[block.next];
    std::uint32_t start = block.clock;
    if (step.wait_block >= 0) {
      Block& other = blocks_[first_block_[block.gpu] + static_cast<std::size_t>(step.wait_block)];
      const auto wanted = static_cast<std::size_t>(step.wait_step);
      if (other.next <= wanted) {
        other.waiters.push_back(index);
        return false;
      }
      start = std::max(start, other.ends[wanted]);
    }
    std::vector<Held> values(static_cast<std::size_t>(step.count));
    if (Receives(step.operation)) {
      auto& queue = in_flight_[{block.program->receive, block.gpu, block.program->channel}];
      if (queue.empty()) return false;  // the sender will wake the block
      if (queue.front().size() != values.size())
        return Fail(step, "the step receives a different number of chunks than was sent");
      values = std::move(queue.front());
      queue.pop_front();
    }
    if (!Move(block, step, start, values)) return false;
    block.ends.push_back(block.clock);
    ++block.next;
    for (const std::size_t waiter : block.waiters) Wake(waiter);
    block.waiters.clear();
    return true;
  }

  bool Move(Block& block, const MscclStep& step, std::uint32_t start, std::vector<Held>& values) {
    const MscclOperation operation = step.operation;
    const bool is_local =
        operation == MscclOperation::kCopy || operation == MscclOperation::kReduce;
    for (std::size_t i = 0; i < values.size() && operation != MscclOperation::kNothing; ++i) {
      const auto shift = static_cast<std::int64_t>(i);
      Held* source = Find(block.gpu, {step.source.buffer, step.source.offset + shift});
      Held* target = Find(block.gpu, {step.target.buffer, step.target.offset + shift});
      const bool reads = is_local || operation == MscclOperation::kSend || Reduces(operation);
      const bool writes =
          operation != MscclOperation::kSend && operation != MscclOperation::kReceiveReduceSend;
      if ((reads && source == nullptr) || (writes && target == nullptr))
        return Fail(step, "the step's chunks are outside the buffer");
      if (reads && source->value == nullptr)
        return Fail(step, "the step reads a chunk that was never written");
      // `re` adds its source to its target. The others add their source to the received value.
      const Held* added = operation == MscclOperation::kReduce ? target : source;
      if (is_local || operation == MscclOperation::kSend) values[i] = *source;
      if (Reduces(operation) && !Add(block, step, *added, values[i])) return false;
      if (writes) *target = values[i];
      start = std::max(start, values[i].ready);
    }
    block.clock = start;
    return !Sends(operation) || Send(block, step, values);
  }

  bool Add(const Block& block, const MscclStep& step, const Held& added, Held& sum) {
    if (added.value == nullptr)
      return Fail(step, "the step adds to a chunk that was never written");
    const Value& a = *added.value;
    const Value& b = *sum.value;
    if (a.chunk != b.chunk)
      return Fail(step, fmt::format("the step adds chunk {} to chunk {}", b.chunk, a.chunk));
    if (a.is_complete || b.is_complete)
      return Fail(step,
                  fmt::format("the step adds to chunk {}, whose sum is already complete", a.chunk));
    auto value = std::make_shared<Value>(a);
    bool is_complete = true;
    for (std::size_t gpu = 0; gpu < value->contributions.size(); ++gpu) {
      const unsigned count = unsigned{a.contributions[gpu]} + b.contributions[gpu];
      if (count > 1)
        return Fail(step, fmt::format("the step adds the contribution of gpu {} to chunk {} twice",
                                      gpu, a.chunk));
      value->contributions[gpu] = static_cast<std::uint8_t>(count);
      is_complete &= count == 1;
    }
    value->is_complete = is_complete;
    if (is_complete) {
      std::int64_t& home = chunks_[static_cast<std::size_t>(a.chunk)].home;
      if (home >= 0)
        return Fail(step,
                    fmt::format("not a forest: the sum of chunk {} is completed at gpu {} and "
                                "again at gpu {}",
                                a.chunk, home, block.gpu));
      home = static_cast<std::int64_t>(block.gpu);
    }
    sum = {std::move(value), std::max(added.ready, sum.ready)};
    return true;
  }

  bool Send(Block& block, const MscclStep& step, std::vector<Held>& values) {
    const Pair pair{block.gpu, block.program->send, block.program->channel};
    const auto receiver = receiver_.find(pair);
    if (block.program->send < 0 || receiver == receiver_.end())
      return Fail(step, "the step sends, but no thread block receives");
    for (Held& held : values) {
      MscclChunk& chunk = chunks_[static_cast<std::size_t>(held.value->chunk)];
      (held.value->is_complete ? chunk.results : chunk.partials)
          .push_back({static_cast<std::uint32_t>(block.gpu),
                      static_cast<std::uint32_t>(block.program->send), block.clock});
      held.ready = block.clock + 1;
    }
    if (++block.clock >= kStepsMax)
      return Fail(step, fmt::format("the program has more than {} steps", kStepsMax));
    in_flight_[pair].push_back(std::move(values));
    Wake(receiver->second);
    return true;
  }

  absl::StatusOr<std::vector<MscclChunk>> CheckResults() {
    for (std::size_t gpu = 0; gpu < program_.gpus.size(); ++gpu) {
      for (std::int64_t chunk = 0; chunk < program_.chunk_count; ++chunk) {
        if (scatters_ && chunk / own_ != static_cast<std::int64_t>(gpu)) continue;
        if (!HasResult(gpu, chunk))
          return absl::InvalidArgumentError(
              fmt::format("gpu {} ends without the result of chunk {}", gpu, chunk));
      }
    }
    return std::move(chunks_);
  }

  bool HasResult(std::size_t gpu, std::int64_t chunk) {
    const auto is_in = [&](MscclPlace place) {
      const Held* held = Find(gpu, place);
      return held != nullptr && held->value != nullptr && held->value->is_complete &&
             held->value->chunk == chunk;
    };
    // In an all-gather that is not in place, a GPU's own part may remain in its input.
    if (gathers_ && chunks_[static_cast<std::size_t>(chunk)].home == static_cast<std::int64_t>(gpu))
      return true;
    if (is_in({'o', scatters_ ? chunk % own_ : chunk})) return true;
    // If the program is not in place, a sum may remain in the input.
    return !gathers_ && is_in({'i', chunk});
  }

  const MscclProgram& program_;
  bool gathers_;
  bool scatters_;
  std::int64_t own_;  // all-gather and reduce-scatter: chunks per GPU
  std::vector<MscclChunk> chunks_;
  std::vector<Block> blocks_;
  std::vector<std::size_t> first_block_;  // by GPU
  std::vector<std::array<std::vector<Held>, 3>> memory_;
  std::map<Pair, std::size_t> receiver_;
  std::map<Pair, std::deque<std::vector<Held>>> in_flight_;
  std::deque<std::size_t> awake_;
  absl::Status error_;
};

}  // namespace

absl::StatusOr<std::vector<MscclChunk>> ExecuteMsccl(const MscclProgram& program) {
  return Machine(program).Execute();
}

}  // namespace phub::plan
