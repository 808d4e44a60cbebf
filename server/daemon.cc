#include "server/daemon.h"

#include <fmt/format.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/host_boot_id.h"
#include "common/base/log.h"
#include "common/base/random.h"
#include "common/base/status_text.h"
#include "common/base/version.h"
#include "common/base/work_thread.h"
#include "common/simd/kernels.h"
#include "common/transport/shm/shm_listener.h"
#include "common/transport/tcp/tcp_listener.h"
#include "common/transport/verbs/verbs_acceptor.h"
#include "server/config/data_tls.h"
#include "server/control/parts.h"
#include "server/control/ports/control_thread.h"
#include "server/control/ports/data_port_report.h"
#include "server/control/ports/lane_gate.h"
#include "server/control/ports/page_thread.h"
#include "server/control/ports/shared_memory_gate.h"
#include "server/control/ports/verbs_gate.h"
#include "server/control/rpc/control_socket.h"
#include "server/control/rpc/grpc_server.h"
#include "server/control/rpc/probe_gate.h"
#include "server/core_plan.h"
#include "server/core_unit.h"
#include "server/daemon_options.h"
#include "server/descriptor_limit.h"
#include "server/metrics/http_server.h"
#include "server/peer_racks.h"
#include "server/tenant/control_store.h"
#include "server/tenant/tenant_admin.h"
#include "server/verbs_devices.h"

namespace phub::server {
namespace {

// How often a listener's thread checks whether to stop; bounds how long stopping takes.
constexpr DurationNs kListenerWait = 100 * kMillisecond;
// The most changes of tenants that wait for the disk.
constexpr std::size_t kStateWorkMax = 256;

}  // namespace

// Members are in the order of construction. They are destroyed in reverse order, after Stop() has
// ended every thread.
struct Daemon::Parts {
  // verbs_queues: one for each core loop, or empty.
  Parts(const Settings& daemon_settings, CorePlan core_plan, const RackTopology& topology,
        VerbsQueues verbs_queues)
      : settings(daemon_settings), plan(std::move(core_plan)) {
    for (std::size_t i = 0; i < plan.loop_count(); ++i) {
      cores.push_back(std::make_unique<CoreUnit>(CoreIndex{static_cast<std::uint32_t>(i)}, clock,
                                                 settings.staging_bytes_per_lane,
                                                 verbs_queues.empty() ? nullptr : verbs_queues[i]));
    }
    std::vector<CoreHandle> handles;
    for (const auto& core : cores) {
      handles.push_back({&core->loop.queues(), &core->loop.counters(),
                         [unit = core.get()] { unit->thread->Wake(); },
                         core->verbs != nullptr ? &core->verbs->counters() : nullptr});
    }
    control =
        std::make_unique<Control>(clock, random, std::move(handles),
                                  MakeControlOptions(settings, topology, !verbs_queues.empty()));
    control_thread = std::make_unique<ControlThread>(*control, clock);
    if (!verbs_queues.empty()) {
      verbs_gate = std::make_unique<ControlVerbsGate>(
          *control_thread, kVerbsIndex, std::move(verbs_queues), VerbsLimitsOf(settings));
      verbs_acceptor = std::make_unique<transport::VerbsAcceptor>(*verbs_gate, random);
      control->host_memory().SetMemoryListener(*verbs_gate);
    }
    peer_links = MakePeerLinks(settings, *control_thread, clock, verbs_gate.get());
    if (peer_links != nullptr) control->rack_messages().SetPeerNetwork(*peer_links);
    prefaulter = std::make_unique<PageThread>([this] { control_thread->doorbell().Ring(); });
    control->host_memory().SetPrefaulter(*prefaulter);
    lane_gate =
        std::make_unique<ControlLaneGate>(*control_thread, kTcpIndex, DataTlsOf(settings).on);
    rack_relay = MakeRackRelay(settings, *control_thread);
    prober = MakeProber(settings, topology, *control_thread, clock);
    if (prober != nullptr) {
      surveyor = SetRackSurveyor(settings, topology, *control, *control_thread, *prober);
      probe_gate = std::make_unique<ProbeGate>(*lane_gate, *prober, DataTlsOf(settings).on);
    }
    shared_memory_gate = std::make_unique<ControlSharedMemoryGate>(*control_thread, kShmIndex);
    for (std::size_t i = 0; i < cores.size(); ++i) {
      CoreUnit& core = *cores[i];
      core.thread = std::make_unique<CoreThread>(
          core.loop, core.transports, clock, control_thread->doorbell(),
          CoreThread::Options{.pin = plan.pins[i], .waiting = plan.waiting});
    }
  }
  ~Parts() { Stop(); }

  absl::Status Start();
  absl::Status StartListener();
  absl::Status StartSharedMemoryListener();
  absl::Status OpenCheckpoint();
  absl::Status StartControlServer();
  absl::Status StartMetricsServer();
  void Stop();

  const Settings settings;
  const CorePlan plan;
  SystemClock clock;
  SystemRandom random;         // for control, under its lock
  SystemRandom system_random;  // for the control store
  std::vector<std::unique_ptr<CoreUnit>> cores;
  std::unique_ptr<Control> control;
  std::unique_ptr<ControlThread> control_thread;
  std::unique_ptr<PageThread> prefaulter;
  std::unique_ptr<ControlVerbsGate> verbs_gate;              // null: no RDMA device
  std::unique_ptr<transport::VerbsAcceptor> verbs_acceptor;  // null: no RDMA device
  // Null without other racks.
  std::unique_ptr<PeerLinks> peer_links;
  std::unique_ptr<RackRelay> rack_relay;
  std::unique_ptr<Prober> prober;          // also null on an aggregator
  std::unique_ptr<RackSurveyor> surveyor;  // null unless this daemon has the topology measured
  std::unique_ptr<ControlLaneGate> lane_gate;
  std::unique_ptr<ProbeGate> probe_gate;  // null without a prober
  std::unique_ptr<ControlSharedMemoryGate> shared_memory_gate;
  std::unique_ptr<transport::TcpListener> listener;
  std::unique_ptr<transport::ShmListener> shared_memory_listener;  // null: shm is off
  Directory directory;
  std::unique_ptr<TenantAdmin> tenant_admin;
  std::unique_ptr<WorkThread> state_thread;
  std::unique_ptr<GrpcServer> grpc_server;
  std::unique_ptr<MetricsServer> metrics_server;  // null: no metrics port
  std::unique_ptr<ControlSocket> control_socket;  // null: no control socket
  std::atomic<bool> listeners_stopping{false};
  std::thread listener_thread;
  std::thread shared_memory_thread;
};

absl::Status Daemon::Parts::StartListener() {
  const HostAndPort address = DataAddress(settings);
  transport::TcpListenerOptions options;
  options.host = address.host;
  options.port = address.port;
  const DataTls data_tls = DataTlsOf(settings);
  options.tls = data_tls.on;
  transport::LaneGate* const gate =
      probe_gate != nullptr ? static_cast<transport::LaneGate*>(probe_gate.get()) : lane_gate.get();
  auto created = transport::TcpListener::Create(options, *gate, clock, verbs_acceptor.get());
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        fmt::format("data lanes (data_listen): {}", MessageOf(created.status())));
  }
  listener = std::move(*created);
  for (std::size_t i = 0; i < cores.size(); ++i) {
    control->SetLaneEndpoint(CoreIndex{static_cast<std::uint32_t>(i)}, LaneHost(settings),
                             listener->port());
  }
  if (prober != nullptr) prober->SetDataEndpoint(LaneHost(settings), listener->port());
  listener_thread = std::thread([this] {
    NameThisThread("lane-listener");
    DataPortReport report(*control_thread, listener->counters());
    while (!listeners_stopping.load(std::memory_order_relaxed)) {
      if (listener->PollOnce(kListenerWait)) report.Update();
    }
  });
  if (data_tls.beyond_loopback && !data_tls.on) {
    LogWarning("event=lanes_in_the_clear data_listen={} reason=\"{}\"",
               FormatHostAndPort({address.host, listener->port()}), data_tls.reason);
  }
  if (data_tls.beyond_loopback && verbs_gate != nullptr) {
    LogWarning(
        "event=verbs_lanes_in_the_clear reason=\"RDMA is not encrypted; tenants that require "
        "encryption use TCP with TLS\"");
  }
  return absl::OkStatus();
}

absl::Status Daemon::Parts::StartSharedMemoryListener() {
  if (settings.shm == ShmMode::kOff) return absl::OkStatus();
  auto created = transport::ShmListener::Create({}, *shared_memory_gate, clock, random);
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        fmt::format("shared memory (shm; disable it with --shm off): {}",
                                    MessageOf(created.status())));
  }
  shared_memory_listener = std::move(*created);
  control->host_memory().SetSharedMemoryEndpoint(shared_memory_listener->name(), HostBootId());
  shared_memory_thread = std::thread([this] {
    NameThisThread("shm-listener");
    while (!listeners_stopping.load(std::memory_order_relaxed)) {
      shared_memory_listener->PollOnce(kListenerWait);
    }
  });
  return absl::OkStatus();
}

// Opens the store of tenants, tokens and the audit log; in memory without a state_dir.
absl::Status Daemon::Parts::OpenCheckpoint() {
  auto store = ControlStore::Open(settings.state_dir, system_random);
  if (!store.ok()) return store.status();
  // With identities only tenants in the store may have jobs; without, every caller is the default
  // tenant.
  if (!settings.state_dir.empty()) {
    const absl::Status removed = control_thread->Run(
        [](Control& under_lock) { return under_lock.tenants().RemoveTenant(kDefaultTenant); });
    PHUB_CHECK(removed.ok());
  }
  AdmissionHooks hooks;
  hooks.set_tenant = [this](const Tenant& tenant) {
    control_thread->Run([&](Control& under_lock) { under_lock.tenants().SetTenant(tenant); });
  };
  hooks.remove_tenant = [this](const std::string& name) {
    return control_thread->Run(
        [&](Control& under_lock) { return under_lock.tenants().RemoveTenant(name); });
  };
  auto admin = TenantAdmin::Create(*std::move(store), directory, system_random, std::move(hooks));
  if (!admin.ok()) return admin.status();
  tenant_admin = *std::move(admin);
  if (settings.state_dir.empty()) directory.SetTenant({.name = kDefaultTenant});
  state_thread = std::make_unique<WorkThread>("state", kStateWorkMax);
  LogInfo("event=control_state state_dir=\"{}\" tenants={} tokens={}", settings.state_dir,
          directory.Tenants().size(), directory.Tokens().size());
  return absl::OkStatus();
}

absl::Status Daemon::Parts::StartControlServer() {
  const HostAndPort address = Address(settings.listen);
  GrpcServerOptions options;
  options.host = address.host;
  options.port = address.port;
  options.tls = {settings.tls_certificate, settings.tls_key, settings.tls_client_ca};
  options.directory = &directory;
  options.identities = !settings.state_dir.empty();
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

absl::Status Daemon::Parts::StartMetricsServer() {
  if (settings.metrics_listen.empty()) return absl::OkStatus();
  const HostAndPort address = Address(settings.metrics_listen);
  const auto collect = [this] {
    return control_thread->Run([](Control& each) { return each.metrics().Sample(); });
  };
  auto created = MetricsServer::Create(address.host, address.port, collect, clock);
  if (!created.ok()) {
    return absl::Status(created.status().code(),
                        fmt::format("metrics (metrics_listen): {}", MessageOf(created.status())));
  }
  metrics_server = std::move(*created);
  return absl::OkStatus();
}

absl::Status Daemon::Parts::Start() {
  // Open the store first: a second daemon on the same state_dir must fail before it does anything.
  if (absl::Status status = OpenCheckpoint(); !status.ok()) return status;
  for (const auto& core : cores) {
    if (absl::Status status = core->thread->Start(); !status.ok()) return status;
  }
  control_thread->Start();
  if (absl::Status status = StartListener(); !status.ok()) return status;
  if (absl::Status status = StartSharedMemoryListener(); !status.ok()) return status;
  if (absl::Status status = StartCalls(prober.get(), rack_relay.get()); !status.ok()) return status;
  if (absl::Status status = StartControlServer(); !status.ok()) return status;
  if (peer_links != nullptr) {
    if (absl::Status status = peer_links->Start(); !status.ok()) return status;
  }
  return StartMetricsServer();
}

void Daemon::Parts::Stop() {
  metrics_server.reset();
  control_socket.reset();
  if (peer_links != nullptr) peer_links->Stop();
  if (prober != nullptr) prober->Stop();
  if (rack_relay != nullptr) rack_relay->Stop();
  if (grpc_server) grpc_server->Shutdown();
  if (state_thread) state_thread->Finish();
  listeners_stopping.store(true, std::memory_order_relaxed);
  if (listener_thread.joinable()) listener_thread.join();
  if (shared_memory_thread.joinable()) shared_memory_thread.join();
  listener.reset();
  verbs_acceptor.reset();  // its threads pass lanes to control
  control_thread->Stop();
  for (const auto& core : cores) core->thread->Stop();
}

Daemon::Daemon(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Daemon::~Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const Settings& settings,
                                                      const CpuTopology& topology) {
  RaiseDescriptorLimit();
  auto plan = PlanCores(settings, topology);
  if (!plan.ok()) return plan.status();
  auto verbs_queues = OpenVerbsQueues(settings, NodesOf(*plan, topology));
  if (!verbs_queues.ok()) return verbs_queues.status();
  auto rack_topology = ReadRackTopology(settings);
  if (!rack_topology.ok()) return rack_topology.status();
  auto parts =
      std::make_unique<Parts>(settings, *std::move(plan), *rack_topology, *std::move(verbs_queues));
  if (absl::Status status = parts->Start(); !status.ok()) return status;
  std::unique_ptr<Daemon> daemon(new Daemon(std::move(parts)));
  const Parts& started = *daemon->parts_;
  LogInfo(
      "event=serving version={} commit={} listen={} data_listen={} core_loops={} pinned={} wait={} "
      "simd={} usable_cores={} memory_max={} shm={} verbs={} tls={} data_tls={} identities={} "
      "metrics={} daemons=\"{}\" racks=\"{}\"",
      BuildVersion(), BuildCommit(),
      FormatHostAndPort({Address(settings.listen).host, daemon->control_port()}),
      FormatHostAndPort({DataAddress(settings).host, daemon->data_port()}),
      started.plan.loop_count(), started.plan.PinsText(), ToString(started.plan.waiting),
      simd::TargetName(), topology.cores().size(), ExactBytes(settings.memory_max),
      started.shared_memory_listener != nullptr, started.verbs_gate != nullptr,
      !settings.tls_certificate.empty(), DataTlsOf(settings).on, !settings.state_dir.empty(),
      daemon->metrics_url(), settings.daemons, settings.racks);
  if (started.plan.loop_count() > topology.cores().size()) {
    LogWarning("event=cores_oversubscribed core_loops={} usable_cores={}",
               started.plan.loop_count(), topology.cores().size());
  }
  return daemon;
}

std::uint16_t Daemon::control_port() const { return parts_->grpc_server->port(); }
std::uint16_t Daemon::data_port() const { return parts_->listener->port(); }
std::string Daemon::metrics_url() const {
  if (parts_->metrics_server == nullptr) return "off";
  const HostAndPort address = {Address(parts_->settings.metrics_listen).host,
                               parts_->metrics_server->port()};
  return fmt::format("http://{}/metrics", FormatHostAndPort(address));
}

std::string Daemon::Summary() const {
  const Parts& parts = *parts_;
  return fmt::format(
      "phubd {} serves on {} (data lanes on {}, metrics {}); {} core loop{}, {}", BuildVersion(),
      FormatHostAndPort({Address(parts.settings.listen).host, control_port()}),
      FormatHostAndPort({DataAddress(parts.settings).host, data_port()}), metrics_url(),
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
  parts_->control_thread->Run([](Control&) {});
  bool all = true;
  for (const auto& core : parts_->cores) {
    const std::uint64_t runs = core->loop.counters().Get(CoreCounter::loop_runs);
    if (runs == core->runs_seen) {
      LogError("event=core_loop_hangs core={} runs={}", core->loop.core().value, runs);
      all = false;
    }
    core->runs_seen = runs;
  }
  return all;
}

bool Daemon::Drained() {
  return parts_->control_thread->Run([](Control& control) { return control.draining().Drained(); });
}

std::size_t Daemon::job_count() {
  return parts_->control_thread->Run([](Control& control) { return control.job_count(); });
}

}  // namespace phub::server
