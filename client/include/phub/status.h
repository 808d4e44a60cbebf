// How phub reports what went wrong. Nothing in phub throws: functions return a Status, or a
// Result<T> that holds a value or the Status that explains why there is none.
//
// Plain values; a Status or Result is as thread-safe as an int. Messages are complete sentences
// for people: what happened, to whom (job, key, rank, host, daemon), and what to do.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "phub/export.h"

namespace phub {

// Numbered as gRPC and Abseil number them. New codes may be added.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,  // withdrawn by Cancel(), or the job was left
  kUnknown = 2,
  kInvalidArgument = 3,   // the arguments are wrong whatever the state
  kDeadlineExceeded = 4,  // not done in time; it may still be done later
  kNotFound = 5,
  kAlreadyExists = 6,  // a live worker holds this rank, a key has this name
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // a quota or the daemon's memory; the message has the shortfall
  kFailedPrecondition = 9,  // not now: the state must change first
  kAborted = 10,            // the job ended: the message names who died or disagreed
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,     // a bug in phub, or a peer that breaks its protocol
  kUnavailable = 14,  // the daemon cannot be reached, or died
  kUnauthenticated = 16,
};

// "FAILED_PRECONDITION". Static storage.
PHUB_API const char* ToString(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }  // empty if ok

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// "FAILED_PRECONDITION: key fc1.weight ...", or "OK".
PHUB_API std::string ToString(const Status& status);

namespace internal {
// Prints the status and aborts: the value of a failed Result was used.
[[noreturn]] PHUB_API void BadResultAccess(const Status& status);
}  // namespace internal

// A value, or why there is none. Using the value of a failed Result prints the status and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: `return value;` is the point
  // REQUIRES: !status.ok()
  Result(Status status) : status_(std::move(status)) {  // NOLINT: `return status;` likewise
    if (status_.ok())
      status_ = Status(StatusCode::kInternal, "a Result was made from an OK status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }  // OK if there is a value

  T& value() & { return *Checked(); }
  const T& value() const& { return *Checked(); }
  T&& value() && { return std::move(*Checked()); }
  T& operator*() & { return *Checked(); }
  const T& operator*() const& { return *Checked(); }
  T&& operator*() && { return std::move(*Checked()); }
  T* operator->() { return &*Checked(); }
  const T* operator->() const { return &*Checked(); }

 private:
  std::optional<T>& Checked() {
    if (!value_) internal::BadResultAccess(status_);
    return value_;
  }
  const std::optional<T>& Checked() const {
    if (!value_) internal::BadResultAccess(status_);
    return value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace phub
