// Converts keys between the control plane and checkpoints. Pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/checkpoint/description.h"
#include "phub/v1/session.pb.h"

namespace phub::client {

const char* OperationName(v1::Operation operation);      // "sum", ...
const char* OptimizerName(v1::OptimizerKind optimizer);  // "none", "sgd", ...
std::map<std::string, double> HyperParameterMap(const v1::HyperParameters& values);
// Values that the map lacks are 0.
v1::HyperParameters HyperParametersOf(const std::map<std::string, double>& values);

// A key's description, without the values that change during training.
checkpoint::SavedKey DescribeKey(const v1::KeySpec& spec);
// The name of a key's tensor in the file; empty: the key has no such tensor.
std::string TensorName(const checkpoint::SavedKey& key, v1::StateTensor tensor);
// The size of one element of that tensor. REQUIRES: the key has it.
std::uint32_t TensorElementBytes(const checkpoint::SavedKey& key, v1::StateTensor tensor);
// The tensors of an initialized key, in the order of the enum.
std::vector<v1::StateTensor> StateTensors(const checkpoint::SavedKey& key);
// OK if the checkpoint of `saved` can be loaded into `running`; the error says what differs.
absl::Status CheckSameKey(const checkpoint::SavedKey& saved, const checkpoint::SavedKey& running);

}  // namespace phub::client
