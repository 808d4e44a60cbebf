#include "client/session/pool_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "client/session/key_checks.h"

namespace phub::client {
namespace {

// An operation has a known type and elements.
Status CheckSize(const std::string& place, const char* what, ConstElements values) {
  if (!IsKnown(values.type))
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: the {} have an unknown type", place, what));
  if (values.count == 0)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: 0 elements of type {} were given, but an operation has at "
                              "least 1",
                              place, ToString(Numeric(values.type))));
  return Status();
}

// A round fits into its key.
Status CheckCapacity(const std::string& place, const KeyDefinition& key, ConstElements values) {
  const numeric::ElementType type = Numeric(values.type);
  const std::uint64_t count_max = key.element_count / numeric::ElementBytes(type);
  if (values.count <= count_max) return Status();
  return Status(StatusCode::kInvalidArgument,
                fmt::format("{}: {} elements of type {} were given, but its capacity is {} bytes "
                            "(1 to {} elements)",
                            place, values.count, ToString(type), key.element_count, count_max));
}

// "0, 2, 5" or "0 to 7"
std::string RanksOf(const KeyDefinition& key) {
  if (key.members.empty()) return fmt::format("0 to {}", key.parts.ranks - 1);
  std::string text;
  for (const Rank rank : key.members)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", rank.value);
  return text;
}

}  // namespace

Result<numeric::Reduction> CheckPoolOperation(const std::string& place, ConstElements gradients,
                                              ConstElements parameters, Operation operation) {
  if (Status sized = CheckSize(place, "gradients", gradients); !sized.ok()) return sized;
  const numeric::ElementType type = Numeric(gradients.type);
  if (operation == Operation::kDefault) operation = Operation::kSum;
  Status status = CheckOperation(place, operation, type);
  if (status.ok()) status = CheckElements(place, "gradients", gradients, type, gradients.count);
  if (status.ok()) status = CheckElements(place, "parameters", parameters, type, gradients.count);
  // The result may arrive where the gradients are.
  if (status.ok() && gradients.data != parameters.data)
    status = CheckNoOverlap(place, gradients, parameters);
  if (!status.ok()) return status;
  return ReductionOf(operation);
}

Result<wire::PoolRound> CheckPoolRound(const std::string& place, const KeyDefinition& key,
                                       ConstElements gradients, ConstElements parameters,
                                       Operation operation) {
  const Result<numeric::Reduction> reduction =
      CheckPoolOperation(place, gradients, parameters, operation);
  if (!reduction.ok()) return reduction.status();
  if (Status status = CheckCapacity(place, key, gradients); !status.ok()) return status;
  return wire::PoolRound{.elements = gradients.count, .reduction = *reduction};
}

Status CheckPoolBroadcast(const std::string& place, const KeyDefinition& key, ConstElements values,
                          std::uint32_t root) {
  Status status = CheckSize(place, "values", values);
  if (status.ok())
    status = CheckElements(place, "values", values, Numeric(values.type), values.count);
  if (!status.ok()) return status;
  const bool is_rank = key.members.empty() ? root < key.parts.ranks
                                           : std::ranges::binary_search(key.members, Rank{root});
  if (!is_rank)
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{}: root is {}, but its ranks are {}", place, root, RanksOf(key)));
  if (!key.why_no_broadcasts.empty())
    return Status(StatusCode::kFailedPrecondition,
                  fmt::format("{}: {}", place, key.why_no_broadcasts));
  return Status();
}

Status CheckBroadcastRound(const std::string& place, const KeyDefinition& key, ConstElements values,
                           std::uint32_t root) {
  Status status = CheckPoolBroadcast(place, key, values, root);
  return status.ok() ? CheckCapacity(place, key, values) : status;
}

}  // namespace phub::client
