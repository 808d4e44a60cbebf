#include "aggregator/control_service.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "aggregator/daemon_identity.h"
#include "aggregator/lease_numbers.h"
#include "aggregator/metric_list.h"
#include "common/aggregation/endpoint_text.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/tls/grpc/server_credentials.h"
#include "phub/v1/aggregator.grpc.pb.h"

namespace phub::aggregator {
namespace {

constexpr std::chrono::milliseconds kShutdownTimeout{200};  // calls take less
constexpr int kRequestBytesMax = 64 << 10;
constexpr std::size_t kSocketPathMax = 107;
constexpr int kMetadataBytesMax = 8 << 10;
// A daemon makes one call after the other.
constexpr int kCallsPerConnectionMax = 4;
constexpr int kThreadsMax = 16;
constexpr std::size_t kMemoryMax = 64 << 20;
// A connection that does not complete its handshake in this time is closed.
constexpr int kHandshakeTimeoutMs = 5'000;
// For connections of dead peers.
constexpr int kKeepaliveMs = 10'000;

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(MessageOf(status))};
}

std::uint64_t UnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

absl::StatusOr<LeaseRequest> Read(const v1::GrantLeaseRequest& request) {
  LeaseRequest read{.tenant = request.tenant(), .job = request.job()};
  read.keep_alive = DurationNs{request.keep_alive_ms()} * kMillisecond;
  read.lease.slot_count = request.slot_count();
  read.lease.count_max = request.count_max();
  read.lease.worker_count = static_cast<std::uint32_t>(request.workers_size());
  if (read.lease.worker_count > PHUB_WORKERS_MAX)
    return absl::InvalidArgumentError(
        fmt::format("{} workers: a lease has 1 to {}", request.workers_size(), PHUB_WORKERS_MAX));
  auto core_loop = aggregation::ParseEndpoint(request.core_loop());
  if (!core_loop.ok()) return core_loop.status();
  read.lease.core_loop = *core_loop;
  for (int i = 0; i < request.workers_size(); ++i) {
    auto worker = aggregation::ParseEndpoint(request.workers(i));
    if (!worker.ok()) return worker.status();
    read.lease.workers[i] = *worker;
  }
  return read;
}

}  // namespace

class LeaseService final : public v1::Aggregator::Service {
 public:
  LeaseService(std::string address, std::string trust_domain, Engine& engine, std::mutex& mutex,
               const Clock& clock)
      : address_(std::move(address)),
        trust_domain_(std::move(trust_domain)),
        engine_(engine),
        mutex_(mutex),
        clock_(clock) {}

  grpc::Status Grant(grpc::ServerContext* context, const v1::GrantLeaseRequest* request,
                     v1::GrantLeaseResponse* response) override {
    const auto owner = Identify(*context);
    if (!owner.ok()) return ToGrpc(owner.status());
    auto read = Read(*request);
    if (!read.ok()) return ToGrpc(read.status());
    read->owner = *owner;
    phub_lease& lease = read->lease;
    for (__u64& word : lease.key.words) word = random_.Next();
    {
      const std::scoped_lock lock(mutex_);
      lease.number = numbers_.Next(UnixMs());
      const absl::Status granted = engine_.Grant(*read, clock_.Now());
      if (!granted.ok()) {
        LogWarning("event=lease_refused daemon={} tenant=\"{}\" job=\"{}\" reason=\"{}\"", *owner,
                   read->tenant, read->job, MessageOf(granted));
        return ToGrpc(granted);
      }
    }
    // The number must lie in the past before anyone uses it (lease_numbers.h).
    for (std::uint64_t wait; (wait = LeaseNumbers::WaitMs(lease.number, UnixMs())) != 0;)
      std::this_thread::sleep_for(std::chrono::milliseconds(std::min<std::uint64_t>(wait, 100)));
    LogInfo("event=lease_granted lease={} daemon={} tenant=\"{}\" job=\"{}\" workers={} slots={}",
            lease.number, *owner, read->tenant, read->job, lease.worker_count, lease.slot_count);
    response->set_number(lease.number);
    response->mutable_key()->assign(reinterpret_cast<const char*>(lease.key.words),
                                    sizeof lease.key.words);
    response->set_aggregator(address_);
    return grpc::Status::OK;
  }

  grpc::Status Renew(grpc::ServerContext* context, const v1::RenewLeasesRequest* request,
                     v1::RenewLeasesResponse* response) override {
    const auto owner = Identify(*context);
    if (!owner.ok()) return ToGrpc(owner.status());
    const std::scoped_lock lock(mutex_);
    for (const std::uint32_t number : request->numbers()) {
      if (!engine_.Renew(number, *owner, clock_.Now())) response->add_unknown(number);
    }
    return grpc::Status::OK;
  }

  grpc::Status End(grpc::ServerContext* context, const v1::EndLeaseRequest* request,
                   v1::EndLeaseResponse*) override {
    const auto owner = Identify(*context);
    if (!owner.ok()) return ToGrpc(owner.status());
    {
      const std::scoped_lock lock(mutex_);
      if (!engine_.End(request->number(), *owner))
        return {grpc::NOT_FOUND, fmt::format("{} has no lease {}", *owner, request->number())};
    }
    LogInfo("event=lease_ended lease={}", request->number());
    return grpc::Status::OK;
  }

  // A daemon of another host sees its own leases only.
  grpc::Status List(grpc::ServerContext* context, const v1::ListLeasesRequest*,
                    v1::ListLeasesResponse* response) override {
    const auto owner = Identify(*context);
    if (!owner.ok()) return ToGrpc(owner.status());
    const std::scoped_lock lock(mutex_);
    for (const Engine::Info& info : engine_.Leases()) {
      if (*owner != kLocal && info.owner != *owner) continue;
      v1::LeaseInfo& lease = *response->add_leases();
      lease.set_number(info.number);
      lease.set_tenant(info.tenant);
      lease.set_job(info.job);
      lease.set_worker_count(info.workers);
      lease.set_slot_count(info.slots);
      lease.set_pool_bytes(info.bytes);
      lease.set_sums(info.sums);
      lease.set_daemon(info.owner);
    }
    ForEachCounter(engine_.counters(), [&](const char* name, const char* label, std::uint64_t n) {
      v1::AggregatorCounter& counter = *response->add_counters();
      counter.set_name(name);
      counter.set_label(label);
      counter.set_value(n);
    });
    response->set_pool_bytes(engine_.limits().pool_bytes);
    response->set_pool_bytes_used(engine_.bytes_used());
    return grpc::Status::OK;
  }

 private:
  absl::StatusOr<std::string> Identify(const grpc::ServerContext& context) {
    auto owner = IdentifyDaemon(context, trust_domain_);
    if (!owner.ok()) {
      const std::scoped_lock lock(mutex_);
      engine_.NoteCallRefused();
    }
    return owner;
  }

  const std::string address_;
  const std::string trust_domain_;
  Engine& engine_;
  std::mutex& mutex_;
  const Clock& clock_;
  SystemRandom random_;
  LeaseNumbers numbers_;  // under mutex_
};

struct ControlServer::Impl {
  Impl(const ControlOptions& options, std::string address, Engine& engine, std::mutex& mutex,
       const Clock& clock)
      : service(std::move(address), options.trust_domain, engine, mutex, clock) {}
  LeaseService service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
};

namespace {

absl::Status CheckSocketPath(const std::string& path) {
  if (path.empty() || path.size() > kSocketPathMax)
    return absl::InvalidArgumentError(
        fmt::format("--control: the path of a socket must have 1 to {} bytes", kSocketPathMax));
  // gRPC removes what is at the path. A file that is not a socket is somebody's data.
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0 && !S_ISSOCK(found.st_mode))
    return absl::InvalidArgumentError(
        fmt::format("--control: {} exists and is not a socket", path));
  return absl::OkStatus();
}

// Strangers reach the TCP port.
void LimitCallers(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // two processes would share the calls
  builder.SetMaxReceiveMessageSize(kRequestBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMetadataBytesMax);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnectionMax);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  grpc::ResourceQuota quota("control");
  quota.SetMaxThreads(kThreadsMax);
  quota.Resize(kMemoryMax);
  builder.SetResourceQuota(quota);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Create(const ControlOptions& options,
                                                                     std::string address,
                                                                     Engine& engine,
                                                                     std::mutex& mutex,
                                                                     const Clock& clock) {
  if (const absl::Status status = CheckSocketPath(options.socket_path); !status.ok()) return status;
  auto impl = std::make_unique<Impl>(options, std::move(address), engine, mutex, clock);
  grpc::ServerBuilder builder;
  LimitCallers(builder);
  int bound = 0;
  builder.AddListeningPort("unix:" + options.socket_path, grpc::InsecureServerCredentials(),
                           &bound);
  const bool remote = !options.listen.host.empty();
  const std::string listen = net::HostPort(options.listen.host, options.listen.port);
  if (remote)
    builder.AddListeningPort(
        listen, MakeServerCredentials(options.tls, ClientCertificates::kRequired), &impl->port);
  builder.RegisterService(&impl->service);
  const mode_t before = umask(0177);  // rw for the owner only, from the moment the file exists
  impl->server = builder.BuildAndStart();
  umask(before);
  if (bound == 0)
    return absl::UnavailableError(
        fmt::format("--control: cannot listen on the Unix socket {}", options.socket_path));
  if (impl->server == nullptr || (remote && impl->port == 0))
    return absl::UnavailableError(fmt::format(
        "--control-listen: cannot listen on {}: it is not an address of this host, or another "
        "process uses the port",
        listen));
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

ControlServer::~ControlServer() {
  impl_->server->Shutdown(std::chrono::system_clock::now() + kShutdownTimeout);
}

std::uint16_t ControlServer::port() const { return static_cast<std::uint16_t>(impl_->port); }

}  // namespace phub::aggregator
