// How values of etcd are parsed; for record*.cc.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace phub::server::etcd {

inline absl::Status Damaged() {
  return absl::DataLossError("in etcd was not written by phub, or is damaged");
}

template <typename Message>
absl::StatusOr<Message> Parse(const absl::StatusOr<std::string>& body) {
  if (!body.ok()) return body.status();
  Message message;
  if (!message.ParseFromString(*body)) return Damaged();
  return message;
}

}  // namespace phub::server::etcd
