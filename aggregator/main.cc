// phub-aggregator: adds up integers on the way from workers to a daemon (docs/aggregation.md).
//   SIGTERM, SIGINT   end all leases and exit with 0
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "aggregator/control_service.h"
#include "aggregator/engine.h"
#include "aggregator/metrics_page.h"
#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/endpoint_text.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/standard_streams.h"
#include "common/base/status_text.h"
#include "common/base/units.h"
#include "common/base/version.h"
#include "common/http/metrics_server.h"
#include "common/net/address.h"
#include "common/net/host_port.h"
#include "common/tls/certificate.h"
#ifdef PHUB_HAS_XDP
#include "aggregator/xdp/start.h"
#endif

namespace phub::aggregator {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
constexpr std::size_t kQueuedBytesMax = 1 << 20;
// How late a lease may expire.
constexpr int kExpireMs = 50;

struct Options {
  std::string listen;
  std::string control = "/run/phub/aggregator.sock";
  std::string control_listen;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  std::string trust_domain = "phub";
  std::string metrics;
  std::string pool = "64MiB";
  std::string tenant_pool;
  std::vector<std::string> xdp;
  std::string log_level = "info";
};

struct Settings {
  aggregation::ParsedAddress listen;
  ControlOptions control;
  Limits limits;
};

int Fail(std::string_view message, int code) {
  fmt::print(stderr, "phub-aggregator: {}\n", message);
  return code;
}

void AddOptions(CLI::App& app, Options& options) {
  app.set_version_flag("--version", std::string("phub-aggregator ") + BuildVersion());
  app.add_option(
         "--listen", options.listen,
         "Receive datagrams at this address of this host, such as 10.0.0.9:7701. It must be "
         "one numeric address, since workers accept answers only from it. Port 0: any")
      ->required()
      ->type_name("<address:port>");
  app.add_option("--control", options.control,
                 "Unix socket for daemons, which grant and end leases there. Only the user of this "
                 "process and root can open it (default: " +
                     options.control + ")")
      ->type_name("<path>");
  app.add_option("--control-listen", options.control_listen,
                 "Also let daemons of other hosts grant and end leases, at this address over TLS, "
                 "such as 10.0.0.9:7702 (default: off)")
      ->type_name("<host:port>");
  app.add_option("--tls-certificate", options.tls_certificate,
                 "Certificate chain (PEM) for --control-listen (phubctl pki issue server NAME)")
      ->type_name("<path>");
  app.add_option("--tls-key", options.tls_key, "Private key of the certificate (PEM), mode 0600")
      ->type_name("<path>");
  app.add_option("--tls-client-ca", options.tls_client_ca,
                 "CA certificates (PEM) of daemons, whose certificates have the role server")
      ->type_name("<path>");
  app.add_option("--trust-domain", options.trust_domain,
                 "Trust domain in daemons' certificates (default: " + options.trust_domain + ")")
      ->type_name("<name>");
  app.add_option("--metrics", options.metrics,
                 "Serve /metrics over HTTP at this address, such as 127.0.0.1:9701 (default: off)")
      ->type_name("<host:port>");
  app.add_option("--pool", options.pool,
                 "Memory for the slots of all leases; grants beyond it are refused (default: " +
                     options.pool + ")")
      ->type_name("<size>");
  app.add_option("--tenant-pool", options.tenant_pool,
                 "Memory for the slots of one tenant's leases (default: the whole pool)")
      ->type_name("<size>");
  app.add_option(
         "--xdp", options.xdp,
         "Add in the kernel, where packets arrive on this interface (XDP). May be repeated. "
         "Needs IPv4, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON (default: add in this process)")
      ->type_name("<interface>");
  app.add_option("--log-level", options.log_level, "debug, info, warning or error (default: info)")
      ->type_name("<level>");
}

absl::StatusOr<ControlOptions> CheckControl(const Options& options) {
  ControlOptions control{.socket_path = options.control,
                         .listen = {},
                         .tls = {.certificate = options.tls_certificate,
                                 .key = options.tls_key,
                                 .client_ca = options.tls_client_ca},
                         .trust_domain = options.trust_domain};
  const bool has_all = !control.tls.certificate.empty() && !control.tls.key.empty() &&
                       !control.tls.client_ca.empty();
  const bool has_some = !control.tls.certificate.empty() || !control.tls.key.empty() ||
                        !control.tls.client_ca.empty();
  if (options.control_listen.empty()) {
    if (!has_some) return control;
    return absl::InvalidArgumentError("the options --tls-... need --control-listen");
  }
  if (!has_all)
    return absl::InvalidArgumentError(
        "--control-listen needs --tls-certificate, --tls-key and --tls-client-ca");
  const auto listen = net::ParseHostAndPort(options.control_listen);
  if (!listen.ok())
    return absl::InvalidArgumentError(fmt::format(
        "--control-listen \"{}\" {}", options.control_listen, MessageOf(listen.status())));
  control.listen = *listen;
  if (const absl::Status files = CheckTlsFiles(control.tls); !files.ok()) return files;
  return control;
}

absl::StatusOr<Settings> Check(const Options& options) {
  Settings settings;
  const auto listen = aggregation::ParseAddress(options.listen);
  if (!listen.ok())
    return absl::InvalidArgumentError(fmt::format("--listen: {}", MessageOf(listen.status())));
  settings.listen = *listen;
  const auto control = CheckControl(options);
  if (!control.ok()) return control.status();
  settings.control = *control;
  const auto size = [](const char* name, const std::string& text,
                       std::uint64_t& bytes) -> absl::Status {
    const auto parsed = ParseBytes(text);
    if (!parsed || *parsed == 0)
      return absl::InvalidArgumentError(
          fmt::format("{}: \"{}\" is not a size, such as 64MiB", name, text));
    bytes = *parsed;
    return absl::OkStatus();
  };
  if (const absl::Status status = size("--pool", options.pool, settings.limits.pool_bytes);
      !status.ok())
    return status;
  settings.limits.tenant_bytes = settings.limits.pool_bytes;
  if (!options.tenant_pool.empty()) {
    const absl::Status status =
        size("--tenant-pool", options.tenant_pool, settings.limits.tenant_bytes);
    if (!status.ok()) return status;
  }
  LogLevel level{};
  if (!ParseLogLevel(options.log_level, level))
    return absl::InvalidArgumentError(fmt::format(
        "--log-level: \"{}\" is not a level (debug, info, warning, error)", options.log_level));
  SetLogLevel(level);
  return settings;
}

// Slots in the kernel, if there are interfaces. Null: none.
absl::StatusOr<std::unique_ptr<KernelSlots>> StartKernelSlots(
    const std::vector<std::string>& interfaces, const phub_endpoint& own,
    std::uint64_t pool_bytes) {
  if (interfaces.empty()) return nullptr;
#ifdef PHUB_HAS_XDP
  return StartXdp(interfaces, own, pool_bytes);
#else
  static_cast<void>(own);
  static_cast<void>(pool_bytes);
  return absl::InvalidArgumentError(
      "this phub-aggregator was built without the aggregator in the kernel (PHUB_XDP)");
#endif
}

int CodeOf(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? kExitUsage : kExitFailure;
}

// The thread of the datagrams: returns at a signal. `kernel_events`: -1 for none.
void Serve(aggregation::DatagramSocket& socket, int signals, int kernel_events, Engine& engine,
           std::mutex& mutex, const Clock& clock) {
  const Descriptor events(epoll_create1(EPOLL_CLOEXEC));
  for (const int each : {socket.descriptor(), signals, kernel_events}) {
    if (each < 0) continue;
    epoll_event event{.events = EPOLLIN, .data = {.fd = each}};
    epoll_ctl(events.get(), EPOLL_CTL_ADD, each, &event);
  }
  for (;;) {
    std::array<epoll_event, 3> ready{};
    const int count = epoll_wait(events.get(), ready.data(), ready.size(), kExpireMs);
    for (int i = 0; i < count; ++i) {
      if (ready[static_cast<std::size_t>(i)].data.fd == signals) return;
    }
    const std::scoped_lock lock(mutex);
    // One batch for each look at the signals, so that a flood cannot keep the process alive.
    socket.Receive([&](std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
      engine.Receive(datagram, source);
      if (socket.queued_bytes() > kQueuedBytesMax) socket.Flush();
    });
    engine.TakeKernelEvents();
    socket.Flush();
    for (const std::uint32_t number : engine.Expire(clock.Now()))
      LogWarning("event=lease_expired lease={} reason=\"no daemon renewed it\"", number);
  }
}

int Run(const Options& options) {
  const auto settings = Check(options);
  if (!settings.ok()) return Fail(MessageOf(settings.status()), kExitUsage);
  sigset_t stops;
  sigemptyset(&stops);
  sigaddset(&stops, SIGTERM);
  sigaddset(&stops, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stops, nullptr);  // before any thread starts
  const Descriptor signals(signalfd(-1, &stops, SFD_CLOEXEC));

  const SystemClock clock;
  auto socket = aggregation::DatagramSocket::Bind(settings->listen.storage, settings->listen.bytes);
  if (!socket.ok()) {
    return Fail(fmt::format("--listen {}: {}", options.listen, MessageOf(socket.status())),
                CodeOf(socket.status()));
  }
  const auto kernel =
      StartKernelSlots(options.xdp, socket->endpoint(), settings->limits.pool_bytes);
  if (!kernel.ok())
    return Fail(fmt::format("--xdp: {}", MessageOf(kernel.status())), CodeOf(kernel.status()));
  std::mutex mutex;
  Engine engine(
      settings->limits, socket->endpoint(),
      [&](const phub_endpoint& to, std::span<const std::uint8_t> header,
          std::span<const std::uint8_t> payload) { socket->Queue(to, header, payload); },
      kernel->get());
  const std::string address = aggregation::TextOf(socket->endpoint());
  auto control = ControlServer::Create(settings->control, address, engine, mutex, clock);
  if (!control.ok()) return Fail(MessageOf(control.status()), CodeOf(control.status()));
  std::string metrics_address = "off";
  std::unique_ptr<http::MetricsServer> metrics;
  if (!options.metrics.empty()) {
    const auto address_given = net::ParseHostAndPort(options.metrics);
    if (!address_given.ok())
      return Fail(
          fmt::format("--metrics \"{}\" {}", options.metrics, MessageOf(address_given.status())),
          kExitUsage);
    auto server = http::MetricsServer::Create(
        "phub-aggregator", address_given->host, address_given->port,
        [&](const http::HttpCounts& counts) {
          const std::scoped_lock lock(mutex);
          return WriteMetrics(engine, *socket, counts);
        },
        [](http::MetricsServer::Question) { return absl::OkStatus(); }, clock);
    if (!server.ok())
      return Fail(fmt::format("--metrics: {}", MessageOf(server.status())), kExitFailure);
    metrics = *std::move(server);
    metrics_address = net::ListText(metrics->addresses());
  }
  const std::string& host = settings->control.listen.host;
  LogInfo(
      "event=serving listen={} control={} control_listen={} metrics={} pool={} gro={} gso={} "
      "slots={}",
      address, options.control, host.empty() ? "off" : net::HostPort(host, (*control)->port()),
      metrics_address, ExactBytes(settings->limits.pool_bytes), socket->joins(), socket->cuts(),
      *kernel != nullptr ? "kernel" : "process");
  Serve(*socket, signals.get(), *kernel != nullptr ? (*kernel)->event_descriptor() : -1, engine,
        mutex, clock);
  LogInfo("event=stopped leases={}", engine.Leases().size());
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Adds up integers on the way from workers to a phub daemon: each worker sends its block as a "
      "datagram, and the daemon receives only the sum.\n"
      "A daemon of this host grants leases through the control socket, daemons of other hosts "
      "through --control-listen. See docs/aggregation.md.\n\n"
      "Example: phub-aggregator --listen 10.0.0.9:7701 --metrics 127.0.0.1:9701\n"
      "Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot serve, 2 for a wrong option.",
      "phub-aggregator");
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return Fail(fmt::format("{} (see phub-aggregator --help)", error.what()), kExitUsage);
  }
  return Run(options);
}

}  // namespace
}  // namespace phub::aggregator

int main(int argc, char** argv) {
  return phub::RunWithOutput("phub-aggregator", [&] { return phub::aggregator::Main(argc, argv); });
}
