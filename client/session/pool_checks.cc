#include "client/session/pool_checks.h"

#include <fmt/core.h>

#include <cstdint>

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
  const numeric::ElementType type = Numeric(gradients.type);
  const std::uint64_t count_max = key.element_count / numeric::ElementBytes(type);
  if (gradients.count > count_max)
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: {} elements of type {} were given, but its capacity is {} bytes "
                    "(1 to {} elements)",
                    place, gradients.count, ToString(type), key.element_count, count_max));
  return wire::PoolRound{.elements = gradients.count, .reduction = *reduction};
}

Status CheckPoolBroadcast(const std::string& place, ConstElements values) {
  if (Status status = CheckSize(place, "values", values); !status.ok()) return status;
  return CheckElements(place, "values", values, Numeric(values.type), values.count);
}

}  // namespace phub::client
