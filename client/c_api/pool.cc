// phub_pool_*, phub_job_add_pool and phub_job_remove_pool.
#include <chrono>
#include <cstddef>

#include "client/c_api/structs.h"

namespace phub::c_api {
namespace {

constexpr std::size_t kPoolOptionsFirst = offsetof(phub_pool_options, timeout_ms);

phub_pool_options DefaultPoolOptions() {
  const PoolOptions defaults;
  phub_pool_options options{};
  options.capacity_bytes = defaults.capacity_bytes;
  options.depth = defaults.depth;
  options.timeout_ms = defaults.timeout.count();
  return options;
}

}  // namespace

Status ReadPoolOptions(const char* function, const phub_pool_options* given, PoolOptions& options) {
  phub_pool_options values = DefaultPoolOptions();
  if (Status status = Read(given, "phub_pool_options", kPoolOptionsFirst, values); !status.ok())
    return status;
  if (values.name == nullptr) return NullArgument(function, "name");
  options = {.name = values.name,
             .capacity_bytes = values.capacity_bytes,
             .depth = values.depth,
             .timeout = std::chrono::milliseconds(values.timeout_ms)};
  return ReadPriorityClass(values.priority_class, options.priority_class);
}

}  // namespace phub::c_api

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only
using phub::Status;

void phub_pool_options_init(phub_pool_options* options, size_t struct_size) {
  Initialize(options, struct_size, DefaultPoolOptions());
}

phub_result phub_job_add_pool(phub_job* job, const phub_pool_options* options, phub_pool** pool,
                              phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_add_pool", "job");
    if (options == nullptr) return NullArgument("phub_job_add_pool", "options");
    if (pool == nullptr) return NullArgument("phub_job_add_pool", "pool");
    phub::PoolOptions given;
    if (Status status = ReadPoolOptions("phub_job_add_pool", options, given); !status.ok())
      return status;
    phub::Result<phub::Pool> added = phub::Pool::Add(job->job, given);
    if (!added.ok()) return added.status();
    *pool = new phub_pool{*std::move(added), job->job.name(), job->job.rank()};
    return Status();
  });
}

phub_result phub_job_remove_pool(phub_job* job, phub_pool* pool, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_remove_pool", "job");
    if (pool == nullptr) return NullArgument("phub_job_remove_pool", "pool");
    return pool->pool.Remove(job->job);
  });
}

void phub_pool_free(phub_pool* pool) { delete pool; }

phub_result phub_pool_all_reduce(phub_pool* pool, const phub_const_elements* values,
                                 const phub_elements* results, int32_t operation,
                                 phub_handle** handle, phub_error** error) {
  return Run(pool, error, [&] {
    if (pool == nullptr) return NullArgument("phub_pool_all_reduce", "pool");
    if (values == nullptr) return NullArgument("phub_pool_all_reduce", "values");
    if (results == nullptr) return NullArgument("phub_pool_all_reduce", "results");
    if (handle == nullptr) return NullArgument("phub_pool_all_reduce", "handle");
    if (Status status = CheckChoice("operation", operation, PHUB_BITWISE_XOR); !status.ok())
      return status;
    return Deliver(pool->pool.AllReduce(FromC(*values), FromC(*results),
                                        static_cast<phub::Operation>(operation)),
                   handle);
  });
}

phub_result phub_pool_broadcast(phub_pool* pool, const phub_elements* values, uint32_t root,
                                phub_handle** handle, phub_error** error) {
  return Run(pool, error, [&] {
    if (pool == nullptr) return NullArgument("phub_pool_broadcast", "pool");
    if (values == nullptr) return NullArgument("phub_pool_broadcast", "values");
    if (handle == nullptr) return NullArgument("phub_pool_broadcast", "handle");
    return Deliver(pool->pool.Broadcast(FromC(*values), root), handle);
  });
}

phub_result phub_key_broadcast(phub_key* key, const phub_elements* values, uint32_t root,
                               uint32_t sequence, phub_handle** handle, phub_error** error) {
  return Run(key, error, [&] {
    if (key == nullptr) return NullArgument("phub_key_broadcast", "key");
    if (values == nullptr) return NullArgument("phub_key_broadcast", "values");
    if (handle == nullptr) return NullArgument("phub_key_broadcast", "handle");
    return Deliver(phub::Broadcast(key->key, FromC(*values), root, sequence), handle);
  });
}

int32_t phub_key_can_broadcast(const phub_key* key) {
  return key != nullptr && phub::CanBroadcast(key->key) ? 1 : 0;
}

int32_t phub_pool_would_wait(const phub_pool* pool, const phub_const_elements* values) {
  if (pool == nullptr) return 0;
  return pool->pool.WouldWait(values == nullptr ? phub::ConstElements{} : FromC(*values)) ? 1 : 0;
}
