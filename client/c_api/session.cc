// phub_connect and phub_session_*.
#include <chrono>

#include "client/c_api/structs.h"

namespace phub::c_api {
namespace {

using std::chrono::milliseconds;

std::string Text(const char* given) { return given == nullptr ? "" : given; }

phub_connect_options DefaultConnectOptions() {
  const ConnectOptions defaults;
  phub_connect_options options{};
  options.connect_timeout_ms = defaults.connect_timeout.count();
  options.call_timeout_ms = defaults.call_timeout.count();
  return options;
}

phub_job_options DefaultJobOptions() {
  const JobOptions defaults;
  phub_job_options options{};
  options.world_size = defaults.world_size;
  options.screening = static_cast<std::int32_t>(defaults.screening);
  options.wait_timeout_ms = defaults.wait_timeout.count();
  options.join_timeout_ms = defaults.join_timeout.count();
  options.leave_timeout_ms = defaults.leave_timeout.count();
  return options;
}

constexpr std::size_t kConnectOptionsFirst = sizeof(phub_connect_options);
constexpr std::size_t kJobOptionsFirst = offsetof(phub_job_options, join_timeout_ms);

Status ReadConnectOptions(const phub_connect_options* given, ConnectOptions& options) {
  phub_connect_options values = DefaultConnectOptions();
  if (given != nullptr) {
    Status status = Read(given, "phub_connect_options", kConnectOptionsFirst, values);
    if (!status.ok()) return status;
  }
  options.tenant = Text(values.tenant);
  options.token_file = Text(values.token_file);
  options.tls = {.ca_file = Text(values.ca_file),
                 .certificate = Text(values.certificate),
                 .key = Text(values.key),
                 .server_name = Text(values.server_name)};
  options.plaintext_token = values.plaintext_token != 0;
  options.connect_timeout = milliseconds(values.connect_timeout_ms);
  options.call_timeout = milliseconds(values.call_timeout_ms);
  return Status();
}

Status ReadJobOptions(const phub_job_options* given, JobOptions& options) {
  phub_job_options values = DefaultJobOptions();
  if (Status status = Read(given, "phub_job_options", kJobOptionsFirst, values); !status.ok())
    return status;
  if (values.job == nullptr) return NullArgument("phub_session_join", "options->job");
  for (const Status& status : {CheckChoice("on_loss", values.on_loss, PHUB_ON_LOSS_WAIT),
                               CheckChoice("screening", values.screening, PHUB_SCREENING_REJECT),
                               CheckChoice("apply", values.apply, PHUB_APPLY_ITERATION),
                               CheckChoice("sum", values.sum, PHUB_SUM_FIXED),
                               CheckChoice("transport", values.transport, PHUB_TRANSPORT_VERBS)})
    if (!status.ok()) return status;
  options = {.job = values.job,
             .rank = values.rank,
             .world_size = values.world_size,
             .chunk_bytes = values.chunk_bytes,
             .staging_bytes = values.staging_bytes,
             .on_loss = static_cast<LossPolicy>(values.on_loss),
             .wait_timeout = milliseconds(values.wait_timeout_ms),
             .restart = values.restart != 0,
             .screening = static_cast<Screening>(values.screening),
             .apply = static_cast<Apply>(values.apply),
             .clip_norm = values.clip_norm,
             .skip_nonfinite = values.skip_nonfinite != 0,
             .transport = static_cast<TransportChoice>(values.transport),
             .plan = Text(values.plan),
             .join_timeout = milliseconds(values.join_timeout_ms),
             .sum = static_cast<Sum>(values.sum),
             .sum_block = values.sum_block,
             .leave_timeout = milliseconds(values.leave_timeout_ms)};
  return Status();
}

}  // namespace
}  // namespace phub::c_api

using namespace phub::c_api;  // NOLINT: this file has functions of phub.h only

void phub_connect_options_init(phub_connect_options* options, size_t struct_size) {
  Initialize(options, struct_size, DefaultConnectOptions());
}

void phub_job_options_init(phub_job_options* options, size_t struct_size) {
  Initialize(options, struct_size, DefaultJobOptions());
}

phub_result phub_connect(const char* endpoint, const phub_connect_options* options,
                         phub_session** session, phub_error** error) {
  return Run({}, error, [&] {
    if (endpoint == nullptr) return NullArgument("phub_connect", "endpoint");
    if (session == nullptr) return NullArgument("phub_connect", "session");
    phub::ConnectOptions values;
    if (phub::Status status = ReadConnectOptions(options, values); !status.ok()) return status;
    phub::Result<phub::Session> connected = phub::Connect(endpoint, values);
    if (connected.ok()) *session = new phub_session{std::move(*connected)};
    return connected.status();
  });
}

void phub_session_free(phub_session* session) { delete session; }

phub_result phub_session_join(phub_session* session, const phub_job_options* options,
                              phub_job** job, phub_error** error) {
  phub::JobOptions values;
  Place place;
  return Run(place, error, [&] {
    if (session == nullptr) return NullArgument("phub_session_join", "session");
    if (options == nullptr) return NullArgument("phub_session_join", "options");
    if (job == nullptr) return NullArgument("phub_session_join", "job");
    if (phub::Status status = ReadJobOptions(options, values); !status.ok()) return status;
    place.job = &values.job;
    place.own_rank = values.rank;
    phub::Result<phub::Job> joined = session->session.Join(values);
    if (!joined.ok()) return joined.status();
    std::string transports = joined->transports();
    *job = new phub_job{std::move(*joined), std::move(transports)};
    return phub::Status();
  });
}
