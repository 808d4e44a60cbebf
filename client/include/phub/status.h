// How phub reports errors. phub throws no exceptions: functions return a Status, or a Result<T>
// that holds either a value or the Status of the error.
//
// Both are plain values, as thread-safe as an int. Messages are for people: they say what happened,
// to which job, key, rank, host or daemon, and what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "phub/export.h"

namespace phub {

// The numbers are those of gRPC and Abseil. New codes may be added.
enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,  // withdrawn by Cancel(), or this rank left the job
  kUnknown = 2,
  kInvalidArgument = 3,   // the arguments are wrong in any state
  kDeadlineExceeded = 4,  // not done in time; it may still complete later
  kNotFound = 5,
  kAlreadyExists = 6,  // a live worker holds this rank, or a key has this name
  kPermissionDenied = 7,
  kResourceExhausted = 8,   // a quota or the daemon's memory; the message says how much is missing
  kFailedPrecondition = 9,  // not possible in the present state
  kAborted = 10,            // the job ended; the message names the worker that died or disagreed
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,     // a bug in phub, or a peer that violates the protocol
  kUnavailable = 14,  // the daemon died or cannot be reached
  kUnauthenticated = 16,
};

// "FAILED_PRECONDITION". Static storage.
PHUB_API const char* ToString(StatusCode code);

// What the error of a job is about, as far as its verdict says.
struct ErrorSubject {
  std::string job = {};
  std::string key = {};                    // empty: no key is involved
  std::optional<std::uint32_t> rank = {};  // the rank that died or disagreed
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  Status(StatusCode code, std::string message, std::shared_ptr<const ErrorSubject> subject)
      : code_(code), message_(std::move(message)), subject_(std::move(subject)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }  // empty if ok
  // Null if the error is not a job's verdict.
  const std::shared_ptr<const ErrorSubject>& subject() const { return subject_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::shared_ptr<const ErrorSubject> subject_;
};

// "FAILED_PRECONDITION: key fc1.weight ...", or "OK".
PHUB_API std::string ToString(const Status& status);

namespace internal {
// Prints the status and aborts, because the value of a failed Result was used.
[[noreturn]] PHUB_API void BadResultAccess(const Status& status);
}  // namespace internal

// A value, or the Status of an error. Using the value of a failed Result prints the status and
// aborts.
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
