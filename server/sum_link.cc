#include "server/sum_link.h"

#include <fmt/format.h>
#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "common/aggregation/datagram_socket.h"
#include "common/aggregation/ports.h"
#include "common/base/check.h"
#include "common/base/shortage.h"
#include "common/base/status_text.h"
#include "common/net/address.h"
#include "common/net/host_port.h"
#include "server/config/sum_settings.h"
#include "server/control/control.h"
#include "server/control/lanes/sum_streams.h"
#include "server/peer_racks.h"

namespace phub::server {
namespace {

// One stream's end on a core loop. Its thread calls it, except for the constructor and destructor.
class SocketSumPort final : public SumPort {
 public:
  SocketSumPort(const aggregation::Geometry& geometry, aggregation::CoreStream& stream,
                aggregation::DatagramSocket socket)
      : socket_(std::move(socket)), port_(geometry, stream, socket_) {}
  void Open(const phub_lease& lease) override { port_.Open(lease); }
  bool Receive(TimeNs now, const OnSum& on_sum) override { return port_.Receive(now, on_sum); }
  void NoteAssigned(aggregation::Position position, TimeNs now) override {
    port_.NoteAssigned(position, now);
  }
  std::uint32_t AskAgain(TimeNs now) override { return port_.AskAgain(now); }
  TimeNs deadline() const override { return port_.deadline(); }
  void SendParameters(const phub_parameters& about, std::span<const std::byte> bytes,
                      std::uint8_t worker) override {
    port_.SendParameters(about, bytes, worker);
  }
  void Flush() override { port_.Flush(); }
  std::uint64_t refused() const override { return port_.refused(); }

 private:
  aggregation::DatagramSocket socket_;
  aggregation::CorePort port_;
};

// Where core loops receive.
absl::StatusOr<std::string> AddressFor(const Settings& settings) {
  if (!settings.sum_listen.empty()) return settings.sum_listen;
  if (IsSocketPath(settings.sum_aggregator)) return "127.0.0.1";
  const auto endpoint = net::ParseHostAndPort(settings.sum_aggregator);
  PHUB_CHECK(endpoint.ok(), "sum_aggregator={}", settings.sum_aggregator);
  auto address = net::AddressTowards(endpoint->host, endpoint->port);
  if (address.ok()) return address;
  return absl::UnavailableError(
      fmt::format("sum_aggregator = \"{}\": {}; or set sum_listen to the address of this host that "
                  "the aggregator reaches",
                  settings.sum_aggregator, MessageOf(address.status())));
}

}  // namespace

SumLink::SumLink(SumLeaseOptions leases, const aggregation::ParsedAddress& address,
                 ControlThread& control, const Clock& clock)
    : address_(address),
      control_(control),
      leases_(
          std::move(leases), clock,
          [this](aggregation::LeaseNumber number, const absl::Status& why) {
            control_.Run([&](Control& locked) { locked.sum_streams().HandleLost(number, why); });
          }) {}

absl::StatusOr<std::unique_ptr<SumLink>> SumLink::Create(SumLeaseOptions leases,
                                                         const std::string& address,
                                                         std::size_t core_loops,
                                                         ControlThread& control,
                                                         const Clock& clock) {
  const bool is_v6 = address.find(':') != std::string::npos;
  const auto parsed = aggregation::ParseAddress(is_v6 ? "[" + address + "]:0" : address + ":0");
  const auto invalid = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(
        fmt::format("sum_listen \"{}\": {}", address, MessageOf(why)));
  };
  if (!parsed.ok()) return invalid(parsed.status());
  // A wrong address is found now, and not by the first job.
  if (const auto bound = aggregation::DatagramSocket::Bind(parsed->storage, parsed->bytes);
      !bound.ok())
    return invalid(bound.status());
  std::unique_ptr<SumLink> link(new SumLink(std::move(leases), *parsed, control, clock));
  for (std::size_t core = 0; core < core_loops; ++core) {
    Descriptor& events = link->events_.emplace_back(epoll_create1(EPOLL_CLOEXEC));
    if (events.get() < 0) return DescriptorShortage("watch sockets of sums", errno);
  }
  return link;
}

absl::StatusOr<std::unique_ptr<SumPort>> SumLink::MakePort(CoreIndex core,
                                                           const aggregation::Geometry& geometry,
                                                           aggregation::CoreStream& stream,
                                                           phub_endpoint& here) {
  auto socket = aggregation::DatagramSocket::Bind(address_.storage, address_.bytes);
  if (!socket.ok()) return socket.status();
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (epoll_ctl(events_[core.value].get(), EPOLL_CTL_ADD, socket->descriptor(), &event) != 0)
    return DescriptorShortage("watch a socket of sums", errno);
  here = socket->endpoint();
  return std::make_unique<SocketSumPort>(geometry, stream, *std::move(socket));
}

void SumLink::Grant(SumLeaseRequest request, Incarnation job, CoreIndex core) {
  leases_.Grant(std::move(request), [this, job, core](const absl::StatusOr<phub_lease>& lease) {
    control_.Run([&](Control& locked) { locked.sum_streams().HandleGranted(job, core, lease); });
  });
}

absl::Status MakeSumLink(const Settings& settings, std::size_t core_loops, Control& control,
                         ControlThread& control_thread, const Clock& clock,
                         std::unique_ptr<SumLink>& link) {
  if (settings.sum_aggregator.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> address = AddressFor(settings);
  if (!address.ok()) return address.status();
  auto created = SumLink::Create(
      {.aggregator = settings.sum_aggregator, .credentials = CredentialsOf(settings)}, *address,
      core_loops, control_thread, clock);
  if (!created.ok()) return created.status();
  link = *std::move(created);
  control.SetSumNetwork(*link);
  return link->Start();
}

int EventsOf(const SumLink* link, std::size_t core) {
  return link == nullptr ? -1 : link->EventsOf(core);
}

}  // namespace phub::server
