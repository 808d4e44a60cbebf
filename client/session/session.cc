// phub::Connect and phub::Session.
#include <fmt/core.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "client/session/client_log.h"
#include "client/session/fork.h"
#include "client/session/grpc_connector.h"
#include "client/session/job_impl.h"
#include "client/session/plan_option.h"
#include "client/session/session_impl.h"
#include "common/base/host_boot_id.h"
#include "common/base/printable.h"
#include "common/base/standard_streams.h"
#include "phub/client.h"

namespace phub {
namespace {

constexpr std::size_t kShownBytesMax = 64;  // the shown part of a refused name
Status Invalid(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

std::string OrVariable(const std::string& given, const char* variable) {
  const char* const value = given.empty() ? std::getenv(variable) : nullptr;
  return value == nullptr ? given : value;
}

client::Credentials CredentialsOf(const ConnectOptions& options) {
  client::Credentials credentials;
  credentials.token_file = OrVariable(options.token_file, "PHUB_TOKEN_FILE");
  credentials.ca_file = OrVariable(options.tls.ca_file, "PHUB_CA_FILE");
  credentials.certificate = OrVariable(options.tls.certificate, "PHUB_CERTIFICATE");
  credentials.key = OrVariable(options.tls.key, "PHUB_KEY");
  credentials.server_name = OrVariable(options.tls.server_name, "PHUB_SERVER_NAME");
  credentials.plaintext_token = options.plaintext_token;
  return credentials;
}

Status CheckJobOptions(const JobOptions& options) {
  if (!IsName(options.job))
    return Invalid(fmt::format("job name '{}' must have 1 to {} bytes of printable UTF-8",
                               Printable(options.job, kShownBytesMax), kNameBytesMax));
  if (options.world_size == 0 || options.world_size > kRanksMax)
    return Invalid(fmt::format("world_size is {}; it must be 1 to {} (job {})", options.world_size,
                               kRanksMax, options.job));
  if (options.rank >= options.world_size)
    return Invalid(fmt::format("rank {} must be less than world_size {} (job {})", options.rank,
                               options.world_size, options.job));
  if (options.chunk_bytes != 0 &&
      (options.chunk_bytes % 64 != 0 || options.chunk_bytes < kChunkBytesMin ||
       options.chunk_bytes > kChunkBytesMax))
    return Invalid(
        fmt::format("chunk_bytes is {}; it must be a multiple of 64 from {} to {} (job {})",
                    options.chunk_bytes, kChunkBytesMin, kChunkBytesMax, options.job));
  if (options.leave_timeout.count() < 0)
    return Invalid(fmt::format("leave_timeout must not be negative (job {})", options.job));
  if (options.join_timeout.count() < 0)
    return Invalid(fmt::format("join_timeout must not be negative (job {})", options.job));
  if (options.on_loss == LossPolicy::kWait && options.wait_timeout.count() <= 0)
    return Invalid(fmt::format("wait_timeout must be positive (job {})", options.job));
  if (options.screening > Screening::kReject)
    return Invalid(fmt::format("screening {} is not a valid value (job {})",
                               static_cast<int>(options.screening), options.job));
  if (options.restart && options.on_loss != LossPolicy::kWait)
    return Invalid(
        fmt::format("restart needs on_loss=kWait (job {}): a job with kFail ends when it "
                    "loses a worker",
                    options.job));
  if (options.apply > Apply::kIteration)
    return Invalid(fmt::format("apply {} is not a valid value (job {})",
                               static_cast<int>(options.apply), options.job));
  if (!std::isfinite(options.clip_norm) || options.clip_norm < 0.0)
    return Invalid(
        fmt::format("clip_norm is {}; it must be positive, or 0 for no clipping (job {})",
                    options.clip_norm, options.job));
  if (options.apply == Apply::kChunk && (options.clip_norm > 0.0 || options.skip_nonfinite))
    return Invalid(
        fmt::format("clip_norm and skip_nonfinite need apply=kIteration (job {}): kChunk "
                    "applies a chunk before the other chunks are summed",
                    options.job));
  if (options.sum > Sum::kFixed)
    return Invalid(fmt::format("sum {} is not a valid value (job {})",
                               static_cast<int>(options.sum), options.job));
  if (options.sum == Sum::kFloat && options.sum_block != 0)
    return Invalid(fmt::format("sum_block is {}, but only sum=kFixed has blocks (job {})",
                               options.sum_block, options.job));
  return Status();
}

}  // namespace

const char* Version() { return PHUB_VERSION; }

Result<Session> Connect(std::string_view endpoint, const ConnectOptions& options) {
  OpenStandardStreams();
  client::WatchForks();
  client::ReadLogLevel();
  if (client::InForkedChild()) return client::ForkedStatus();
  Result<client::Endpoint> daemon = client::ParseEndpoint(endpoint);
  if (!daemon.ok()) return daemon.status();
  if (options.connect_timeout.count() <= 0 || options.call_timeout.count() <= 0)
    return Invalid("connect_timeout and call_timeout must be positive");
  auto connector =
      std::make_shared<client::GrpcConnector>(options.connect_timeout, CredentialsOf(options));
  // Detects a wrong address early. Every job opens its own connection later.
  if (auto channel = connector->Connect(*daemon); !channel.ok()) return channel.status();
  return Session(std::shared_ptr<client::SessionImpl>(
      new client::SessionImpl(*std::move(daemon), options, std::move(connector)),
      client::DeleteInParent()));
}

Session::Session(std::shared_ptr<client::SessionImpl> state) : impl_(std::move(state)) {}
Session::~Session() = default;
Session::Session(Session&& other) noexcept = default;
Session& Session::operator=(Session&& other) noexcept = default;

Result<Job> Session::Join(const JobOptions& given) {
  if (client::InForkedChild()) return client::ForkedStatus();
  if (Status status = CheckJobOptions(given); !status.ok()) return status;
  JobOptions options = given;
  if (Status status = client::ReadPlanFile(options); !status.ok()) return status;
  auto job = client::JobImpl::Join({.daemon = impl_->daemon(),
                                    .tenant = impl_->options().tenant,
                                    .call_timeout = impl_->options().call_timeout,
                                    .options = options,
                                    .connector = impl_->connector(),
                                    .boot_id = HostBootId()});
  if (!job.ok()) return job.status();
  return Job(*std::move(job));
}

}  // namespace phub
