// phub_job_*, except the functions that add keys or start rounds.
#include <cstring>

#include "client/c_api/structs.h"

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only
using phub::Status;

namespace {

Status Deliver(const phub::Result<std::uint64_t>& iteration, std::uint64_t* result) {
  if (iteration.ok() && result != nullptr) *result = *iteration;
  return iteration.status();
}

phub_result Save(const char* function, phub_job* job, const char* directory,
                 phub::CheckpointOptions options, std::uint64_t* iteration, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument(function, "job");
    if (directory == nullptr) return NullArgument(function, "directory");
    return Deliver(job->job.SaveCheckpoint(directory, options), iteration);
  });
}

phub_result Load(const char* function, phub_job* job, const char* directory,
                 phub::CheckpointOptions options, std::uint64_t* iteration, phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument(function, "job");
    // Other ranks than 0 need no directory.
    return Deliver(job->job.LoadCheckpoint(directory == nullptr ? "" : directory, options),
                   iteration);
  });
}

}  // namespace

phub_result phub_job_leave(phub_job* job, phub_error** error) {
  return Run(job, error, [&] {
    return job == nullptr ? NullArgument("phub_job_leave", "job") : job->job.Leave();
  });
}

void phub_job_free(phub_job* job) { delete job; }

const char* phub_job_name(const phub_job* job) {
  return job == nullptr ? "" : job->job.name().c_str();
}
uint32_t phub_job_rank(const phub_job* job) { return job == nullptr ? 0 : job->job.rank(); }
uint32_t phub_job_world_size(const phub_job* job) {
  return job == nullptr ? 0 : job->job.world_size();
}
int32_t phub_job_created(const phub_job* job) { return job != nullptr && job->job.created(); }
int32_t phub_job_resumed(const phub_job* job) { return job != nullptr && job->job.resumed(); }
uint64_t phub_job_iteration(const phub_job* job) {
  return job == nullptr ? 0 : job->job.iteration();
}
const char* phub_job_transports(const phub_job* job) {
  return job == nullptr ? "" : job->transports.c_str();
}

phub_result phub_job_status(const phub_job* job, phub_error** error) {
  return Run(job, error, [&] {
    return job == nullptr ? NullArgument("phub_job_status", "job") : job->job.status();
  });
}

phub_result phub_job_last_iteration(const phub_job* job, phub_iteration_outcome* outcome,
                                    phub_error** error) {
  return Run(job, error, [&] {
    if (job == nullptr) return NullArgument("phub_job_last_iteration", "job");
    if (outcome == nullptr) return NullArgument("phub_job_last_iteration", "outcome");
    const std::size_t size = outcome->struct_size;
    if (size < sizeof(phub_iteration_outcome))
      return Invalid("phub_job_last_iteration: set outcome->struct_size first");
    const phub::IterationOutcome last = job->job.last_iteration();
    phub_iteration_outcome values{};
    values.decided = last.decided;
    values.skipped = last.skipped;
    values.last_skipped = last.last_skipped;
    values.norm = last.norm;
    values.scale = last.scale;
    Initialize(outcome, size, values);
    return Status();
  });
}

phub_result phub_job_barrier(phub_job* job, phub_error** error) {
  return Run(job, error, [&] {
    return job == nullptr ? NullArgument("phub_job_barrier", "job") : job->job.Barrier();
  });
}

phub_result phub_job_explain_barrier(const phub_job* job, phub_error** error) {
  return Run(job, error, [&] {
    return job == nullptr ? NullArgument("phub_job_explain_barrier", "job")
                          : job->job.ExplainBarrier();
  });
}

phub_result phub_job_save_checkpoint(phub_job* job, const char* directory, uint64_t* iteration,
                                     phub_error** error) {
  return Save("phub_job_save_checkpoint", job, directory, {}, iteration, error);
}

phub_result phub_job_load_checkpoint(phub_job* job, const char* directory, uint64_t* iteration,
                                     phub_error** error) {
  return Load("phub_job_load_checkpoint", job, directory, {}, iteration, error);
}

phub_result phub_job_save_copy(phub_job* job, const char* directory, uint64_t* iteration,
                               phub_error** error) {
  return Save("phub_job_save_copy", job, directory, {.lasts = false}, iteration, error);
}

phub_result phub_job_load_copy(phub_job* job, const char* directory, uint64_t* iteration,
                               phub_error** error) {
  return Load("phub_job_load_copy", job, directory, {.lasts = false}, iteration, error);
}
