#include "server/daemon.h"

#include <fmt/format.h>

#include <atomic>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/base/version.h"
#include "common/base/work_thread.h"
#include "common/net/address.h"
#include "common/simd/kernels.h"
#include "server/bound_ports.h"
#include "server/config/control_store_setting.h"
#include "server/config/data_tls.h"
#include "server/control/parts.h"
#include "server/control/ports/background_thread.h"
#include "server/control/ports/control_thread.h"
#include "server/control/ports/page_thread.h"
#include "server/control/rpc/control_socket.h"
#include "server/control/rpc/grpc_server.h"
#include "server/core_plan.h"
#include "server/core_unit.h"
#include "server/daemon_health.h"
#include "server/daemon_options.h"
#include "server/descriptor_limit.h"
#include "server/follow_endpoints.h"
#include "server/join_cluster.h"
#include "server/memory_plan.h"
#include "server/open_store.h"
#include "server/peer_racks.h"
#include "server/shared_quotas.h"
#include "server/start_warnings.h"
#include "server/status_ports.h"
#include "server/sum_links.h"
#include "server/tenant/tenant_admin.h"
#include "server/transports/tcp/data_port.h"
#include "server/transports/transport_list.h"

namespace phub::server {
namespace {

// This file also leads to the running program if a newer one has replaced it on disk.
constexpr const char* kOwnProgram = "/proc/self/exe";
// The most changes of tenants that wait for the disk.
constexpr std::size_t kStateWorkMax = 256;
// How often what waits for the disk of state_dir is written, and the disk is checked.
constexpr DurationNs kStateTick = 2 * kSecond;
// What a start needs at least, including gRPC, which aborts or never answers without it.
constexpr std::size_t kDescriptors = 48;
constexpr std::size_t kDescriptorsPerLoop = 8;
constexpr std::size_t kThreads = 32;

}  // namespace

// Members are in the order of construction. They are destroyed in reverse order, after Stop() has
// ended every thread.
struct Daemon::Parts {
  Parts(const Settings& daemon_settings, CorePlan core_plan)
      : settings(daemon_settings), plan(std::move(core_plan)) {}
  ~Parts() { Stop(); }

  // Opens health_listen. With a `place`, also waits until the racks are known.
  absl::Status Prepare(const std::function<void()>& waiting);
  absl::Status Build(const CpuTopology& topology);
  absl::Status MakeControl(const RackTopology& rack_topology);
  void MakeProbes(const RackTopology& rack_topology);
  absl::Status Start(const std::function<void()>& waiting);
  absl::Status StartDataPort();
  absl::Status OpenControlStore(const std::function<void()>& waiting);
  absl::Status StartControlServer();
  http::Health HealthCheck();
  BoundPorts Ports() const;
  void Stop();

  Settings settings;  // those of racks are filled in by Prepare
  const CorePlan plan;
  SystemClock clock;
  SystemRandom random;         // for control, under its lock
  SystemRandom system_random;  // for the control store
  StartState start_state;
  std::unique_ptr<ControlStore> store;  // from Prepare until OpenControlStore
  std::atomic<bool> built = false;
  std::vector<std::unique_ptr<CoreUnit>> cores;
  std::unique_ptr<Control> control;
  std::unique_ptr<ControlThread> control_thread;
  std::unique_ptr<PageThread> prefaulter;
  std::unique_ptr<BackgroundThread> background;
  TransportList transports;
  std::unique_ptr<SumLinks> sum_links;    // null: no aggregator sums
  std::unique_ptr<PeerLinks> peer_links;  // this and the next three: null without other racks
  std::unique_ptr<RackRelay> rack_relay;
  std::unique_ptr<Prober> prober;          // also null on an aggregator
  std::unique_ptr<RackSurveyor> surveyor;  // null unless this daemon has the topology measured
  std::unique_ptr<DataPort> data_port;     // created by Start
  Directory directory;
  std::unique_ptr<TenantAdmin> tenant_admin;
  std::unique_ptr<WorkThread> state_thread;
  std::unique_ptr<GrpcServer> grpc_server;
  std::atomic<bool> serving = false;
  StatusPorts status_ports;
  std::unique_ptr<ControlSocket> control_socket;  // null: no control socket
};

absl::Status Daemon::Parts::Prepare(const std::function<void()>& waiting) {
  // A supervisor sees that the daemon lives while it waits for others.
  absl::Status status = status_ports.StartHealth(settings, HealthCheck(), clock);
  if (!status.ok() || settings.place.empty()) return status;
  return OpenAndJoin(system_random, waiting, start_state, settings, store);
}

absl::Status Daemon::Parts::Build(const CpuTopology& topology) {
  const NumaNodes core_nodes = NodesOf(plan, topology);
  auto opened = TransportList::Open(
      {.settings = settings, .core_nodes = core_nodes, .clock = clock, .random = random});
  if (!opened.ok()) return opened.status();
  transports = *std::move(opened);
  const auto rack_topology = ReadRackTopology(settings);
  if (!rack_topology.ok()) return rack_topology.status();
  if (absl::Status status = MakeControl(*rack_topology); !status.ok()) return status;
  MakeProbes(*rack_topology);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    CoreUnit& core = *cores[i];
    core.thread = std::make_unique<CoreThread>(
        core.loop, core.transports, clock, control_thread->doorbell(),
        CoreThread::Options{plan.pins[i], plan.waiting, EventsOf(sum_links.get(), i)});
  }
  built = true;
  return absl::OkStatus();
}

// Creates the core loops, control, and what control calls.
absl::Status Daemon::Parts::MakeControl(const RackTopology& rack_topology) {
  std::vector<CoreHandle> handles;
  for (std::size_t i = 0; i < plan.loop_count(); ++i) {
    const CoreIndex core{static_cast<std::uint32_t>(i)};
    auto made = transports.MakeTransports(core);
    if (!made.ok()) return made.status();
    cores.push_back(
        std::make_unique<CoreUnit>(core, clock, *std::move(made), settings.liveness_timeout));
    handles.push_back(cores.back()->Handle());
  }
  control = std::make_unique<Control>(
      clock, random, std::move(handles),
      MakeControlOptions(settings, rack_topology, transports.descriptions()));
  control_thread = std::make_unique<ControlThread>(*control, clock);
  transports.Connect(*control_thread, *control);
  absl::Status status =
      MakeSumLinks(settings, cores.size(), *control, *control_thread, clock, sum_links);
  peer_links = MakePeerLinks(settings, *control_thread, clock, transports);
  if (peer_links != nullptr) control->SetPeerNetwork(*peer_links);
  prefaulter = std::make_unique<PageThread>([this] { control_thread->doorbell().Ring(); });
  control->host_memory().SetPrefaulter(*prefaulter);
  if (const absl::Status left = control->host_memory().left().Start(); !left.ok()) {
    LogWarning("event=left_memory_not_charged reason=\"{}\"", MessageOf(left));
  }
  background = std::make_unique<BackgroundThread>(*control_thread);
  control->turns().SetBackground(*background);
  if (status.ok()) status = prefaulter->started();
  return status.ok() ? background->started() : status;
}

void Daemon::Parts::MakeProbes(const RackTopology& rack_topology) {
  rack_relay = MakeRackRelay(settings, *control_thread);
  prober = MakeProber(settings, rack_topology, *control_thread, clock);
  if (prober == nullptr) return;
  surveyor = SetRackSurveyor(settings, rack_topology, *control, *control_thread, *prober);
}

absl::Status Daemon::Parts::StartDataPort() {
  const net::HostAndPort address = DataAddress(settings);
  const DataTls data_tls = DataTlsOf(settings);
  auto opened = DataPort::Open({.host = address.host,
                                .port = address.port,
                                .tls = data_tls.on,
                                .other_kinds = transports.LaneKinds(),
                                .prober = prober.get()},
                               *control_thread, clock);
  if (!opened.ok()) return opened.status();
  data_port = *std::move(opened);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    control->SetLaneEndpoint(CoreIndex{static_cast<std::uint32_t>(i)}, LaneHost(settings),
                             data_port->port());
  }
  if (prober != nullptr) prober->SetDataEndpoint(LaneHost(settings), data_port->port());
  if (absl::Status status = data_port->Start(); !status.ok()) return status;
  if (data_tls.beyond_loopback && !data_tls.on) {
    LogWarning("event=lanes_in_the_clear data_listen={} reason=\"{}\"",
               net::ListText(data_port->addresses()), data_tls.reason);
  }
  return absl::OkStatus();
}

absl::Status Daemon::Parts::OpenControlStore(const std::function<void()>& waiting) {
  if (store == nullptr) {
    auto opened = OpenStore(settings, system_random, waiting);
    if (!opened.ok()) return opened.status();
    store = *std::move(opened);
  }
  if (settings.view.number != 0) {
    FollowEndpoints(*store->membership(), settings, *control_thread, peer_links.get(),
                    rack_relay.get());
  }
  // Only tenants in the store may have jobs. Without identities every caller is the default one.
  if (HasIdentities(settings)) RemoveDefaultTenant(*control_thread);
  auto admin =
      TenantAdmin::Create(std::move(store), directory, system_random, HooksOf(*control_thread));
  if (!admin.ok()) return admin.status();
  tenant_admin = *std::move(admin);
  const absl::Status shared = ShareQuotas(tenant_admin->store(), *control_thread);
  if (!shared.ok()) return shared;
  if (!HasIdentities(settings)) directory.SetTenant({.name = kDefaultTenant});
  state_thread = std::make_unique<WorkThread>("state", kStateWorkMax);
  if (!state_thread->started().ok()) return state_thread->started();
  state_thread->RunEvery(kStateTick, [this] { tenant_admin->Tick(clock.Now()); });
  LogInfo("event=control_state control_store=\"{}\" state_dir=\"{}\" tenants={} tokens={}",
          settings.control_store, settings.state_dir, directory.tenant_count(),
          directory.token_count());
  return absl::OkStatus();
}

absl::Status Daemon::Parts::StartControlServer() {
  const net::HostAndPort address = Address(settings.listen);
  GrpcServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.tls = {settings.tls_certificate, settings.tls_key, settings.tls_client_ca};
  if (settings.front) options.front_program = kOwnProgram;
  options.directory = &directory;
  options.identities = HasIdentities(settings);
  options.request_memory = settings.request_memory;
  options.trust_domain = settings.trust_domain;
  options.admin = tenant_admin.get();
  options.state_thread = state_thread.get();
  options.prober = prober.get();
  options.relay = rack_relay.get();
  auto created = GrpcServer::Create(*control_thread, options);
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        fmt::format("control plane (listen): {}", MessageOf(created.status())));
  }
  grpc_server = std::move(*created);
  if (const std::string path = ControlSocketPath(settings); !path.empty()) {
    auto socket = ControlSocket::Create(path, *grpc_server);
    if (!socket.ok()) return socket.status();
    control_socket = *std::move(socket);
  }
  if (settings.insecure && options.identities && options.tls.empty()) {
    LogWarning("event=tokens_in_the_clear listen={}", settings.listen);
  }
  return absl::OkStatus();
}

http::Health Daemon::Parts::HealthCheck() {
  return [this](http::HealthQuestion question) {
    if (!built) return CheckStarting(start_state.Get(), question);
    return CheckHealth(*control_thread, serving, control->draining(), question);
  };
}

absl::Status Daemon::Parts::Start(const std::function<void()>& waiting) {
  // Open the store first: a second daemon on the same state_dir must fail before it does anything.
  if (absl::Status status = OpenControlStore(waiting); !status.ok()) return status;
  for (const auto& core : cores) {
    if (absl::Status status = core->thread->Start(); !status.ok()) return status;
  }
  if (absl::Status status = control_thread->Start(); !status.ok()) return status;
  if (absl::Status status = StartDataPort(); !status.ok()) return status;
  if (absl::Status status = transports.Start(); !status.ok()) return status;
  if (absl::Status status = StartCalls(prober.get(), rack_relay.get()); !status.ok()) return status;
  if (absl::Status status = StartControlServer(); !status.ok()) return status;
  if (peer_links != nullptr) {
    if (absl::Status status = peer_links->Start(); !status.ok()) return status;
  }
  if (absl::Status status =
          status_ports.Start(settings, HealthCheck(), *control_thread, directory, clock);
      !status.ok()) {
    return status;
  }
  control_thread->Run([this](Control& each) { each.admin().SetAddresses(AddressesOf(Ports())); });
  serving = true;
  return absl::OkStatus();
}

BoundPorts Daemon::Parts::Ports() const {
  BoundPorts ports{grpc_server->addresses(), data_port->addresses(), {}, {}, {}};
  if (status_ports.metrics() != nullptr) ports.metrics = status_ports.metrics()->addresses();
  if (status_ports.health() != nullptr) ports.health = status_ports.health()->addresses();
  if (status_ports.page() != nullptr) ports.page = status_ports.page()->addresses();
  return ports;
}

void Daemon::Parts::Stop() {
  status_ports.Stop();
  control_socket.reset();
  if (peer_links != nullptr) peer_links->Stop();
  if (prober != nullptr) prober->Stop();
  if (rack_relay != nullptr) rack_relay->Stop();
  if (grpc_server) grpc_server->Shutdown();
  if (state_thread) state_thread->Finish();
  if (tenant_admin && tenant_admin->store().grants()) tenant_admin->store().grants()->Stop();
  if (tenant_admin) tenant_admin->Tick(clock.Now(), /*last=*/true);
  data_port.reset();  // its thread calls the transports
  transports.Stop();
  if (background) background->Stop();
  if (control_thread) control_thread->Stop();
  for (const auto& core : cores)
    if (core->thread) core->thread->Stop();
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Settings& settings,
                                                      const CpuTopology& topology,
                                                      const std::function<void()>& waiting) {
  RaiseDescriptorLimit();
  auto plan = PlanCores(settings, topology);
  if (!plan.ok()) return plan.status();
  const std::size_t loops = plan->loop_count();
  const absl::Status room =
      CheckRoom(kDescriptors + kDescriptorsPerLoop * loops, kThreads + loops, "phubd");
  if (!room.ok()) return room;
  const MemoryLimit memory = ReadMemoryLimit();
  LogMemoryPlan(settings, memory);
  Settings planned = settings;
  planned.memory_max = PlanMemory(settings, memory);
  auto parts = std::make_unique<Parts>(planned, *std::move(plan));
  if (absl::Status status = parts->Prepare(waiting); !status.ok()) return status;
  if (absl::Status status = parts->Build(topology); !status.ok()) return status;
  if (absl::Status status = parts->Start(waiting); !status.ok()) return status;
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(parts)));
  const Parts& started = *daemon->parts_;
  LogInfo(
      "event=serving version={} commit={} listen={} data_listen={} core_loops={} pinned={} wait={} "
      "simd={} usable_cores={} memory_max={} shm={} verbs={} tls={} data_tls={} identities={} "
      "metrics={} health={} page={} daemons=\"{}\" racks=\"{}\"",
      BuildVersion(), BuildCommit(), net::ListText(started.grpc_server->addresses()),
      net::ListText(started.data_port->addresses()), started.plan.loop_count(),
      started.plan.PinsText(), ToString(started.plan.waiting), simd::TargetName(),
      topology.cores().size(), ExactBytes(planned.memory_max), started.transports.Serves("shm"),
      started.transports.Serves("verbs"), !settings.tls_certificate.empty(), DataTlsOf(settings).on,
      HasIdentities(settings), MetricsUrls(started.Ports()),
      UrlsOf(started.Ports().health, "/readyz"), UrlsOf(started.Ports().page, "/"),
      started.settings.daemons, started.settings.racks);
  WarnOfAuthorityKey(settings);
  WarnOfLoopback(settings, started.Ports());
  if (started.plan.loop_count() > topology.cores().size()) {
    LogWarning("event=cores_oversubscribed core_loops={} usable_cores={}",
               started.plan.loop_count(), topology.cores().size());
  }
  return daemon;
}

std::uint16_t Daemon::control_port() const { return parts_->grpc_server->port(); }
std::uint16_t Daemon::data_port() const { return parts_->data_port->port(); }

std::string Daemon::Summary() const {
  const Parts& parts = *parts_;
  return fmt::format(
      "phubd {} serves on {}; {} core loop{}, {}", BuildVersion(), Describe(parts.Ports()),
      parts.cores.size(), parts.cores.size() == 1 ? "" : "s",
      parts.plan.pinned() ? fmt::format("pinned to {}", parts.plan.PinsText()) : "not pinned");
}

void Daemon::Drain(DurationNs grace) {
  parts_->grpc_server->SetServing(false);
  parts_->control_thread->Run([grace](Control& control) { control.draining().Drain(grace); });
}

void Daemon::SetDrainTimeout(DurationNs timeout) {
  parts_->control_thread->Run(
      [timeout](Control& control) { control.draining().SetDrainTimeout(timeout); });
}

bool Daemon::MakesProgress() {
  bool all = true;
  if (const DurationNs silent = parts_->control_thread->SilentFor(); silent >= kControlBusy) {
    LogWarning("event=control_busy silent_s={:.1f}", static_cast<double>(silent) / kSecond);
    all = silent < kControlHangs;
  }
  for (const auto& core : parts_->cores) all = core->HasRun() && all;
  return all;
}

bool Daemon::Drained() {
  return parts_->control_thread->Run([](Control& control) { return control.draining().Drained(); });
}

std::size_t Daemon::job_count() {
  return parts_->control_thread->Run([](Control& control) { return control.job_count(); });
}

}  // namespace phub::server
