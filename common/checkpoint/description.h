// The contents of a checkpoint as plain data: the client fills it to save, and reads it to load.
// The list of tensors is derived from the keys, never stored twice: a file cannot contradict
// itself. Pure; any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/element_type.h"

namespace phub::checkpoint {

// One tensor of the optimizer's state, such as {"momentum", kF32}. It has as many elements as the
// key.
struct OptimizerTensor {
  std::string name;  // 1 to 63 of a-z, 0-9 and _
  numeric::ElementType type = numeric::ElementType::kF32;

  friend bool operator==(const OptimizerTensor&, const OptimizerTensor&) = default;
};

struct SavedKey {
  std::string name;                 // IsCheckpointName() holds, and it is not "phub:..."
  std::uint64_t element_count = 0;  // all tensors of a bundle together; at least 1
  numeric::ElementType type = numeric::ElementType::kF32;            // the daemon's masters
  numeric::ElementType gradient_type = numeric::ElementType::kF32;   // on the wire
  numeric::ElementType parameter_type = numeric::ElementType::kF32;  // on the wire, to workers
  std::string operation;  // "sum", "mean", ...; the caller defines these names
  std::string optimizer;
  std::map<std::string, double> hyper_parameters;  // finite; saved bit for bit
  std::vector<OptimizerTensor> optimizer_tensors;
  std::uint64_t optimizer_steps = 0;  // updates so far: t in the optimizers' formulas
  std::uint64_t iteration = 0;        // rounds of this key; a key can be added after the job starts
  std::uint32_t record_version = 1;   // the version of the hyper-parameters
  bool initialized = false;           // false: the key has no parameters and no tensors are saved

  friend bool operator==(const SavedKey&, const SavedKey&) = default;
};

struct CheckpointDescription {
  std::string job;
  std::uint32_t world_size = 0;
  std::uint64_t iteration = 0;  // the iteration boundary at which the snapshot was taken
  std::string phub_version;
  std::vector<std::string> daemons;   // the daemons that held the state, in the job's order
  std::uint64_t saved_at_unix_s = 0;  // seconds since 1970, UTC
  std::vector<SavedKey> keys;

  friend bool operator==(const CheckpointDescription&, const CheckpointDescription&) = default;
};

// A tensor of the file. It has one dimension; elements are little-endian.
struct TensorDescription {
  std::string name;
  numeric::ElementType type = numeric::ElementType::kF32;
  std::uint64_t element_count = 0;

  std::uint64_t bytes() const { return element_count * numeric::ElementBytes(type); }
  friend bool operator==(const TensorDescription&, const TensorDescription&) = default;
};

// "<key>": the parameters, in the type that workers receive.
std::string ParameterTensor(std::string_view key);
// "phub:master/<key>": the daemon's masters, saved only if their type differs.
std::string MasterTensor(std::string_view key);
// "phub:state/<name>/<key>": a tensor of the optimizer's state: "phub:state/momentum/fc1.weight".
std::string OptimizerStateTensor(std::string_view name, std::string_view key);

// The tensors of a key, in the order above; empty if the key is not initialized.
std::vector<TensorDescription> TensorsOf(const SavedKey& key);
// The tensors of all keys, in the order of keys.
std::vector<TensorDescription> TensorsOf(const CheckpointDescription& description);

// 1 to 255 bytes of UTF-8 without control characters.
bool IsCheckpointName(std::string_view name);

// OK if names are valid and unique, types and counts are possible and numbers are finite. The error
// names the key.
absl::Status CheckDescription(const CheckpointDescription& description);
// Whether the format of checkpoints uses the name itself, so no key can have it.
bool IsReservedName(std::string_view key_name);

}  // namespace phub::checkpoint
