#include "server/etcd/client.h"

#include <absl/strings/str_split.h>
#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <chrono>

#include "common/base/check.h"

namespace phub::server::etcd {
namespace {

constexpr std::string_view kPlain = "http://";
constexpr std::string_view kEncrypted = "https://";
// How often changed files of the certificate and the authority are noticed.
constexpr unsigned kRefreshSeconds = 10;
constexpr int kRoundsMax = 2;  // how often each endpoint is asked

std::string AddressOf(const std::string& url) {
  return url.substr(url.starts_with(kPlain) ? kPlain.size() : kEncrypted.size());
}

std::shared_ptr<grpc::ChannelCredentials> Credentials(const ClientOptions& files) {
  if (files.ca.empty() && files.certificate.empty()) return grpc::SslCredentials({});
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (!files.certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key, files.certificate, files.ca, kRefreshSeconds));
  if (!files.ca.empty()) options.watch_root_certs();
  return grpc::experimental::TlsCredentials(options);
}

// Another endpoint may answer.
bool IsOfEndpoint(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

absl::Status FromGrpc(const std::string& url, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK: return absl::OkStatus();
    case grpc::StatusCode::PERMISSION_DENIED:
      return absl::PermissionDeniedError(fmt::format(
          "etcd ({}) does not permit this: {}. Grant the user of etcd_certificate's common name "
          "readwrite on etcd_prefix",
          url, status.error_message()));
    default:
      return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                          fmt::format("etcd ({}): {}", url, status.error_message()));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseEndpoints(const std::string& text) {
  std::vector<std::string> endpoints = absl::StrSplit(text, ',', absl::SkipWhitespace());
  if (endpoints.empty()) return absl::InvalidArgumentError("it names no endpoint of etcd");
  for (const std::string& url : endpoints) {
    const bool has_scheme = url.starts_with(kPlain) || url.starts_with(kEncrypted);
    const std::string address = has_scheme ? AddressOf(url) : "";
    if (!has_scheme || address.find(':') == std::string::npos ||
        address.find('/') != std::string::npos || address.front() == ':' || address.back() == ':') {
      return absl::InvalidArgumentError(
          fmt::format("\"{}\" is not an endpoint of etcd; write https://host:port", url));
    }
  }
  return endpoints;
}

bool WatchStream::Next(pb::WatchResponse& response) { return stream_->Read(&response); }

absl::Status WatchStream::status() { return FromGrpc(endpoint_, stream_->Finish()); }

Client::Client(const ClientOptions& options) {
  PHUB_CHECK(!options.endpoints.empty());
  std::shared_ptr<grpc::ChannelCredentials> encrypted;
  for (const std::string& url : options.endpoints) {
    std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
    if (url.starts_with(kEncrypted)) {
      if (encrypted == nullptr) encrypted = Credentials(options);
      credentials = encrypted;
    }
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    // A channel that has failed tries again after it has resolved the name again.
    arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(AddressOf(url), credentials, arguments);
    endpoints_.push_back(
        {url, pb::KV::NewStub(channel), pb::Watch::NewStub(channel), pb::Lease::NewStub(channel)});
  }
}

template <typename Response, typename Ask>
absl::StatusOr<Response> Client::Call(Ask ask) {
  const SystemClock clock;
  const TimeNs end = clock.Now() + kCallMax;
  std::string reasons;
  const std::size_t first = first_;
  for (std::size_t i = 0; i < kRoundsMax * endpoints_.size(); ++i) {
    const DurationNs left = std::min(kAttempt, end - clock.Now());
    if (left <= 0) break;
    Endpoint& endpoint = EndpointAt(first + i);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left));
    Response response;
    const grpc::Status status = ask(endpoint, context, response);
    if (status.ok()) {
      first_ = first + i;
      return response;
    }
    if (!IsOfEndpoint(status)) return FromGrpc(endpoint.url, status);
    if (i >= endpoints_.size()) continue;  // its reason is there already
    reasons +=
        fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", endpoint.url, status.error_message());
  }
  return absl::UnavailableError(fmt::format("etcd does not answer ({})", reasons));
}

absl::StatusOr<pb::RangeResponse> Client::Range(const pb::RangeRequest& request) {
  return Call<pb::RangeResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::RangeResponse& response) {
        return endpoint.kv->Range(&context, request, &response);
      });
}

absl::StatusOr<pb::TxnResponse> Client::Txn(const pb::TxnRequest& request) {
  PHUB_CHECK(request.success_size() <= kOperationsMax && request.failure_size() <= kOperationsMax &&
             request.compare_size() <= kOperationsMax);
  return Call<pb::TxnResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::TxnResponse& response) {
        return endpoint.kv->Txn(&context, request, &response);
      });
}

absl::StatusOr<pb::LeaseGrantResponse> Client::GrantLease(DurationNs duration) {
  pb::LeaseGrantRequest request;
  request.set_ttl(duration / kSecond);
  return Call<pb::LeaseGrantResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::LeaseGrantResponse& response) {
        return endpoint.lease->LeaseGrant(&context, request, &response);
      });
}

absl::StatusOr<DurationNs> Client::KeepLeaseAlive(std::int64_t lease) {
  pb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  const auto answer = Call<pb::LeaseKeepAliveResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::LeaseKeepAliveResponse& response) {
        const auto stream = endpoint.lease->LeaseKeepAlive(&context);
        stream->Write(request);  // if it fails, so does Read
        stream->WritesDone();
        const bool answered = stream->Read(&response);
        if (answered) context.TryCancel();
        const grpc::Status status = stream->Finish();
        return answered ? grpc::Status::OK : status;
      });
  if (!answer.ok()) return answer.status();
  return answer->ttl() * kSecond;
}

absl::StatusOr<Client::LeaseTime> Client::TimeLeftOf(std::int64_t lease) {
  pb::LeaseTimeToLiveRequest request;
  request.set_id(lease);
  const auto answer = Call<pb::LeaseTimeToLiveResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::LeaseTimeToLiveResponse& response) {
        return endpoint.lease->LeaseTimeToLive(&context, request, &response);
      });
  if (!answer.ok()) return answer.status();
  return LeaseTime{std::max<DurationNs>(0, answer->ttl() * kSecond),
                   answer->grantedttl() * kSecond};
}

absl::Status Client::RevokeLease(std::int64_t lease) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  const auto answer = Call<pb::LeaseRevokeResponse>(
      [&](Endpoint& endpoint, grpc::ClientContext& context, pb::LeaseRevokeResponse& response) {
        return endpoint.lease->LeaseRevoke(&context, request, &response);
      });
  return absl::IsNotFound(answer.status()) ? absl::OkStatus() : answer.status();
}

std::unique_ptr<WatchStream> Client::Watch(const pb::WatchRequest& request) {
  auto watch = std::make_unique<WatchStream>();
  Endpoint& endpoint = EndpointAt(first_);
  watch->endpoint_ = endpoint.url;
  watch->context_.AddMetadata("hasleader", "true");
  watch->stream_ = endpoint.watch->Watch(&watch->context_);
  watch->stream_->Write(request);  // if it fails, so does Next
  return watch;
}

}  // namespace phub::server::etcd
