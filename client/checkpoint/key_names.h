// Keys as the control plane writes them and as saved state does. Pure functions.
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
// What the map says; what it does not say is 0.
v1::HyperParameters HyperParametersOf(const std::map<std::string, double>& values);

// A key's description, without what changes while it trains.
checkpoint::SavedKey DescribeKey(const v1::KeySpec& spec);
// A key's tensor in the file; empty: the key has no such tensor.
std::string TensorName(const checkpoint::SavedKey& key, v1::StateTensor tensor);
// Of one element of that tensor. REQUIRES: the key has it.
std::uint32_t TensorElementBytes(const checkpoint::SavedKey& key, v1::StateTensor tensor);
// Tensors of a key that has parameters, in the order of the enum.
std::vector<v1::StateTensor> StateTensors(const checkpoint::SavedKey& key);
// Can state saved of `saved` become that of `running`? Says what differs.
absl::Status CheckSameKey(const checkpoint::SavedKey& saved, const checkpoint::SavedKey& running);

}  // namespace phub::client
