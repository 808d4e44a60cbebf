// What a saved state holds, as plain data: the client fills it to save and reads it to load. Which
// tensors there are follows from the keys, so that a file cannot say one thing and hold another.
// Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/element_type.h"

namespace phub::checkpoint {

// One tensor of the optimizer's state, as long as the key: {"momentum", kF32}.
struct OptimizerTensor {
  std::string name;  // 1 to 63 of a-z, 0-9 and _
  numeric::ElementType type = numeric::ElementType::kF32;

  friend bool operator==(const OptimizerTensor&, const OptimizerTensor&) = default;
};

struct SavedKey {
  std::string name;                 // as IsCheckpointName() says, and not "phub:..."
  std::uint64_t element_count = 0;  // of the whole key, a bundle's tensors end to end; at least 1
  numeric::ElementType type = numeric::ElementType::kF32;            // what the daemon computes on
  numeric::ElementType gradient_type = numeric::ElementType::kF32;   // on the wire
  numeric::ElementType parameter_type = numeric::ElementType::kF32;  // on the wire, as workers get
  std::string operation;  // "sum", "mean", ...: words of the caller, like the optimizer's
  std::string optimizer;
  std::map<std::string, double> hyper_parameters;  // finite; kept bit for bit
  std::vector<OptimizerTensor> optimizer_tensors;
  std::uint64_t optimizer_steps = 0;  // updates made, as the optimizer's formulas count them
  std::uint64_t iteration = 0;        // rounds of this key; keys may be younger than their job
  std::uint32_t record_version = 1;   // of the hyper-parameters
  bool initialized = false;           // has parameters; else no tensor of it is saved

  friend bool operator==(const SavedKey&, const SavedKey&) = default;
};

struct CheckpointDescription {
  std::string job;
  std::uint32_t world_size = 0;
  std::uint64_t iteration = 0;  // the boundary at which the state was taken
  std::string phub_version;
  std::vector<std::string> daemons;   // where it came from, in the job's order
  std::uint64_t saved_at_unix_s = 0;  // seconds since 1970, UTC
  std::vector<SavedKey> keys;

  friend bool operator==(const CheckpointDescription&, const CheckpointDescription&) = default;
};

// A tensor of the file: one dimension of element_count elements, little-endian.
struct TensorDescription {
  std::string name;
  numeric::ElementType type = numeric::ElementType::kF32;
  std::uint64_t element_count = 0;

  std::uint64_t bytes() const { return element_count * numeric::ElementBytes(type); }
  friend bool operator==(const TensorDescription&, const TensorDescription&) = default;
};

// "<key>": the parameters, in the type in which workers get them.
std::string ParameterTensor(std::string_view key);
// "phub:master/<key>": what the daemon computes on, where that is another type.
std::string MasterTensor(std::string_view key);
// "phub:state/<name>/<key>": the optimizer's, "phub:state/momentum/fc1.weight".
std::string OptimizerStateTensor(std::string_view name, std::string_view key);

// The tensors of a key, in the order above; none if it is not initialized.
std::vector<TensorDescription> TensorsOf(const SavedKey& key);
// Of all keys, in their order.
std::vector<TensorDescription> TensorsOf(const CheckpointDescription& description);

// 1 to 255 bytes of UTF-8 without control characters.
bool IsCheckpointName(std::string_view name);

// Names well formed and unique, types and counts possible, numbers finite; the error names the key.
absl::Status CheckDescription(const CheckpointDescription& description);

}  // namespace phub::checkpoint
