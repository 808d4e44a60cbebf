#include "client/session/fault_text.h"

#include <fmt/core.h>

#include <memory>
#include <string>
#include <utility>

#include "common/base/shortage.h"

namespace phub::client {
namespace {

StatusCode CodeOf(const absl::Status& status) {
  // The codes of phub and Abseil are the same numbers.
  return static_cast<StatusCode>(status.code());
}

std::string TextOf(const absl::Status& status) {
  if (status.ok()) return "the daemon closed the stream";
  return std::string(status.message());
}

const char* HowItEnded(transport::TransportError error) {
  switch (error) {
    case transport::TransportError::kPeerClosed: return "connection closed by the daemon";
    case transport::TransportError::kReset: return "connection reset";
    default: return transport::ToString(error);
  }
}

// Rounded to a tenth of a second.
std::string Seconds(DurationNs duration) {
  const DurationNs tenths = (duration + kSecond / 20) / (kSecond / 10);
  return fmt::format("{}.{} s", tenths / 10, tenths % 10);
}

}  // namespace

Status CallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kUnknown:
      return Status(CodeOf(status),
                    fmt::format("{}: daemon {}: {}", call, daemon.ToString(), TextOf(status)));
    default: return Status(CodeOf(status), TextOf(status));
  }
}

Status NamedCallStatus(std::string_view call, const Endpoint& daemon, const absl::Status& status) {
  return Status(CodeOf(status),
                fmt::format("{}: daemon {}: {}", call, daemon.ToString(), TextOf(status)));
}

Status FaultStatus(const v1::Fault& fault) {
  ErrorSubject subject{.job = fault.job(), .key = fault.key()};
  if (fault.has_rank()) subject.rank = fault.rank();
  return Status(StatusCode::kAborted,
                fault.message().empty() ? fmt::format("job {} ended: {}", fault.job(), fault.code())
                                        : fault.message(),
                std::make_shared<const ErrorSubject>(std::move(subject)));
}

Status DaemonSilent(const Endpoint& daemon, DurationNs age, std::string_view job,
                    std::uint32_t rank) {
  return Status(StatusCode::kUnavailable,
                fmt::format("daemon {} has not answered for {} (job {}, rank {})",
                            daemon.ToString(), Seconds(age), job, rank));
}

Status LanesSilent(const Endpoint& daemon, DurationNs silence, bool control_answers,
                   std::string_view job, std::uint32_t rank) {
  return Status(
      StatusCode::kUnavailable,
      fmt::format("daemon {} has been silent on all lanes for {}{} (job {}, rank {})",
                  daemon.ToString(), Seconds(silence),
                  control_answers ? ", although its control plane answers: the network to its data "
                                    "ports probably fails"
                                  : "",
                  job, rank));
}

Status LaneSilent(const Endpoint& daemon, std::uint32_t core, DurationNs silence,
                  std::string_view job, std::uint32_t rank) {
  return Status(StatusCode::kUnavailable,
                fmt::format("daemon {} has been silent on the lane to core {} for {} (job {}, "
                            "rank {})",
                            daemon.ToString(), core, Seconds(silence), job, rank));
}

Status SessionUnknown(const Endpoint& daemon, std::string_view job, std::uint32_t rank) {
  return Status(StatusCode::kAborted,
                fmt::format("daemon {} no longer knows this worker: the daemon was restarted and "
                            "its part of the job is lost; start the job again (job {}, rank {})",
                            daemon.ToString(), job, rank));
}

Status StreamLost(const Endpoint& daemon, const absl::Status& status, std::string_view job,
                  std::uint32_t rank) {
  const bool answered = !status.ok() && status.code() != absl::StatusCode::kUnavailable &&
                        status.code() != absl::StatusCode::kUnknown;
  return Status(
      answered ? StatusCode::kAborted : StatusCode::kUnavailable,
      fmt::format("daemon {} {} (control stream: {}; job {}, rank {})", daemon.ToString(),
                  answered ? "ended the session" : "cannot be reached", TextOf(status), job, rank));
}

Status LaneLost(const Endpoint& daemon, std::uint32_t core, const LaneClosed& closed,
                std::string_view job, std::uint32_t rank) {
  if (closed.fault != LaneFault::kNone)
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {} violated the lane protocol on core {}: {} (chunk {}, "
                              "iteration {}; job {}, rank {})",
                              daemon.ToString(), core, ToString(closed.fault), closed.chunk.value,
                              closed.iteration.value, job, rank));
  if (closed.error == transport::TransportError::kProtocol)
    return Status(
        StatusCode::kInternal,
        fmt::format("daemon {} violated the lane protocol on core {}: {} (job {}, rank {})",
                    daemon.ToString(), core, transport::ToString(closed.protocol_error), job,
                    rank));
  if (closed.shortage != 0)
    return Status(
        StatusCode::kResourceExhausted,
        fmt::format("cannot watch the lane to daemon {}, core {}: {} (job {}, rank {})",
                    daemon.ToString(), core, DescriptorErrorText(closed.shortage), job, rank));
  if (closed.silence > 0) return LaneSilent(daemon, core, closed.silence, job, rank);
  const std::string trouble = closed.connection != nullptr ? closed.connection->Trouble() : "";
  return Status(StatusCode::kUnavailable,
                fmt::format("daemon {} died or is unreachable (lane to core {}: {}{}{}; job {}, "
                            "rank {})",
                            daemon.ToString(), core, HowItEnded(closed.error),
                            trouble.empty() ? "" : ": ", trouble, job, rank));
}

Status ControlLostToo(const Status& lane_lost, const absl::Status& control) {
  return Status(lane_lost.code(), fmt::format("{}; its control plane does not answer either ({})",
                                              lane_lost.message(), TextOf(control)));
}

Status WaitedInVain(const Status& lost, DurationNs waited) {
  return Status(lost.code(),
                fmt::format("{}; it did not recover within {}", lost.message(), Seconds(waited)));
}

bool IsPassing(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:  // a stream that was closed without a reason
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:  // gRPC reports a reset stream like this
    case absl::StatusCode::kResourceExhausted: return true;
    default: return false;
  }
}

}  // namespace phub::client
