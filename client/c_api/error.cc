// phub_error_*, and how statuses become errors.
#include <fmt/core.h>

#include "client/c_api/objects.h"

namespace phub::c_api {
namespace {

// For the lack of memory for an error. Never freed.
phub_error* OutOfMemory() {
  static phub_error error{.result = PHUB_RESOURCE_EXHAUSTED, .message = "out of memory"};
  return &error;
}

phub_error* MakeError(const Status& status, const Place& place) {
  auto error = std::make_unique<phub_error>();
  error->result = static_cast<phub_result>(status.code());
  error->message = status.message();
  if (place.job != nullptr) error->job = *place.job;
  if (place.key != nullptr) error->key = *place.key;
  error->own_rank = place.own_rank;
  error->rank = error->own_rank;
  if (const ErrorSubject* subject = status.subject().get(); subject != nullptr) {
    if (!subject->job.empty()) error->job = subject->job;
    if (!subject->key.empty()) error->key = subject->key;
    if (subject->rank) error->rank = *subject->rank;
  }
  return error.release();
}

}  // namespace

Place::Place(const phub_job* job_in) {
  if (job_in == nullptr) return;
  job = &job_in->job.name();
  own_rank = job_in->job.rank();
}
Place::Place(const client::KeyImpl* key_in) {
  if (key_in == nullptr) return;
  job = &key_in->job->name();
  key = &key_in->definition.name;
  own_rank = key_in->job->rank();
}
Place::Place(const phub_key* key_in)
    : Place(key_in == nullptr ? nullptr : client::RoundAccess::KeyOf(key_in->key).get()) {}
Place::Place(const phub_group* group_in) {
  if (group_in == nullptr) return;
  job = &group_in->job;
  own_rank = group_in->own_rank;
}
Place::Place(const phub_pool* pool_in) {
  if (pool_in == nullptr) return;
  job = &pool_in->job;
  own_rank = pool_in->own_rank;
}
Place::Place(const phub_handle* handle_in)
    : Place(handle_in == nullptr ? nullptr : client::RoundAccess::KeyOf(handle_in->handle).get()) {}

phub_result Report(const Status& status, const Place& place, phub_error** error) noexcept {
  if (error != nullptr) {
    try {
      *error = status.ok() ? nullptr : MakeError(status, place);
    } catch (const std::bad_alloc&) {
      *error = OutOfMemory();
    }
  }
  return static_cast<phub_result>(status.code());
}

phub_result ReportException(phub_error** error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    if (error != nullptr) *error = OutOfMemory();
    return PHUB_RESOURCE_EXHAUSTED;
  } catch (const std::exception& exception) {
    // std::system_error: the system has no more threads or descriptors.
    try {
      return Report(Status(StatusCode::kResourceExhausted, exception.what()), Place(), error);
    } catch (...) {
      if (error != nullptr) *error = OutOfMemory();
      return PHUB_RESOURCE_EXHAUSTED;
    }
  } catch (...) {
    if (error != nullptr) *error = OutOfMemory();
    return PHUB_INTERNAL;
  }
}

Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

Status NullArgument(const char* function, const char* argument) {
  return Invalid(fmt::format("{}: {} is NULL", function, argument));
}

Status Deliver(Handle handle, phub_handle** result) {
  if (client::RoundAccess::KeyOf(handle) == nullptr) return handle.Wait();  // the reason
  *result = new phub_handle{std::move(handle)};
  return Status();
}

}  // namespace phub::c_api

const char* phub_version(void) { return phub::Version(); }
const char* phub_result_name(int32_t result) {
  return phub::ToString(static_cast<phub::StatusCode>(result));
}

phub_result phub_error_result(const phub_error* error) {
  return error == nullptr ? PHUB_OK : error->result;
}
const char* phub_error_message(const phub_error* error) {
  return error == nullptr ? "" : error->message.c_str();
}
const char* phub_error_job(const phub_error* error) {
  return error == nullptr ? "" : error->job.c_str();
}
const char* phub_error_key(const phub_error* error) {
  return error == nullptr ? "" : error->key.c_str();
}
int64_t phub_error_rank(const phub_error* error) { return error == nullptr ? -1 : error->rank; }
int64_t phub_error_own_rank(const phub_error* error) {
  return error == nullptr ? -1 : error->own_rank;
}
void phub_error_free(phub_error* error) {
  if (error != phub::c_api::OutOfMemory()) delete error;
}
