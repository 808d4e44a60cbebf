// Tells errors that phubd returned from those that were made on the way to it: by gRPC, by the
// network, or by the front of the control port, while phubd itself may live. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace phub::rpc {

// phubd sends every error with details (gRPC's trailer grpc-status-details-bin): the bytes of a
// google.rpc.Status that has only its code. Nothing on the way adds details.
inline std::string AnswerDetails(int code) { return {'\x08', static_cast<char>(code)}; }

inline constexpr const char* kOutageUrl = "phub.v1/outage";

// The status of a call with a mark if it is an outage: no phubd could work on the call, so the same
// call may succeed later. phubd may have executed it all the same, since its answer may be lost.
// `details` are those of gRPC's status.
inline absl::Status StatusOfCall(absl::Status status, std::string_view details) {
  bool outage = false;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable: outage = true; break;  // phubd's own: it is too busy
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal: outage = details.empty(); break;  // gRPC: a reset stream
    default: break;
  }
  if (outage) status.SetPayload(kOutageUrl, absl::Cord());
  return status;
}

inline bool IsOutage(const absl::Status& status) {
  return status.GetPayload(kOutageUrl).has_value();
}

// Descriptors that a call may need. Without them it fails like in an outage, but waiting would not
// help; see CheckRoom() in common/base/shortage.h.
inline constexpr std::size_t kDescriptorsOfCall = 4;

}  // namespace phub::rpc
