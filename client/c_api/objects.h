// The objects behind the opaque pointers of phub.h, and how its functions report errors.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "client/session/completion_queue.h"
#include "client/session/round_access.h"
#include "phub/client.h"
#include "phub/group.h"
#include "phub/phub.h"
#include "phub/pool.h"

struct phub_error {
  phub_result result = PHUB_UNKNOWN;
  std::string message = {};
  std::string job = {};
  std::string key = {};
  std::int64_t rank = -1;
  std::int64_t own_rank = -1;
};
struct phub_session {
  phub::Session session;
};
struct phub_job {
  phub::Job job;
  const std::string transports;
};
struct phub_key {
  phub::Key key;
};
struct phub_handle {
  phub::Handle handle;
};
struct phub_group {
  phub::Group group;
  const std::string job;
  const std::int64_t own_rank;
};
struct phub_pool {
  phub::Pool pool;
  const std::string job;
  const std::int64_t own_rank;
};
struct phub_queue {
  std::shared_ptr<phub::client::CompletionQueue> state;
};

namespace phub::c_api {

// What a call is about, if its error does not say. Refers to the texts of an object or of the call.
struct Place {
  Place() = default;
  Place(const phub_job* job_in);        // NOLINT: implicit
  Place(const phub_key* key_in);        // NOLINT: implicit
  Place(const phub_handle* handle_in);  // NOLINT: implicit
  Place(const phub_group* group_in);    // NOLINT: implicit
  Place(const phub_pool* pool_in);      // NOLINT: implicit
  explicit Place(const client::KeyImpl* key_in);

  const std::string* job = nullptr;
  const std::string* key = nullptr;
  std::int64_t own_rank = -1;
};

// Sets *error from a status, unless `error` is null. Returns the status's code.
phub_result Report(const Status& status, const Place& place, phub_error** error) noexcept;
// Reports the exception that is being handled. It is the standard library's: phub throws none.
phub_result ReportException(phub_error** error) noexcept;

// Runs the body of a function of phub.h: it returns a Status. No exception leaves.
template <typename Body>
phub_result Run(const Place& place, phub_error** error, Body body) noexcept {
  try {
    return Report(body(), place, error);
  } catch (...) {
    return ReportException(error);
  }
}

Status Invalid(std::string message);
// "phub_job_leave: job is NULL"
Status NullArgument(const char* function, const char* argument);

// A started round, or the reason why it was refused.
Status Deliver(Handle handle, phub_handle** result);

}  // namespace phub::c_api
