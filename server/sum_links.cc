#include "server/sum_links.h"

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

// Where core loops receive the aggregator's sums.
absl::StatusOr<std::string> AddressFor(const Settings& settings, const std::string& aggregator) {
  if (!settings.sum_listen.empty()) return settings.sum_listen;
  if (IsSocketPath(aggregator)) return "127.0.0.1";
  const auto endpoint = net::ParseHostAndPort(aggregator);
  PHUB_CHECK(endpoint.ok(), "sum_aggregator={}", settings.sum_aggregator);
  auto address = net::AddressTowards(endpoint->host, endpoint->port);
  if (address.ok()) return address;
  return absl::UnavailableError(
      fmt::format("sum_aggregator names {}: {}; or set sum_listen to the address of this host that "
                  "the aggregator reaches",
                  aggregator, MessageOf(address.status())));
}

absl::StatusOr<aggregation::ParsedAddress> CheckAddress(const std::string& address) {
  const bool is_v6 = address.find(':') != std::string::npos;
  auto parsed = aggregation::ParseAddress(is_v6 ? "[" + address + "]:0" : address + ":0");
  const auto invalid = [&](const absl::Status& why) {
    return absl::InvalidArgumentError(
        fmt::format("sum_listen \"{}\": {}", address, MessageOf(why)));
  };
  if (!parsed.ok()) return invalid(parsed.status());
  // A wrong address is found now, and not by the first job.
  const auto bound = aggregation::DatagramSocket::Bind(parsed->storage, parsed->bytes);
  if (!bound.ok()) return invalid(bound.status());
  return parsed;
}

}  // namespace

SumLinks::Link::Link(AggregatorIndex self, SumLeaseOptions options,
                     const aggregation::ParsedAddress& here, ControlThread& control,
                     const Clock& clock)
    : name(options.aggregator),
      address(here),
      leases(std::move(options), clock,
             [self, &control](aggregation::LeaseNumber number, const absl::Status& why) {
               control.Run(
                   [&](Control& locked) { locked.sum_streams().HandleLost(self, number, why); });
             }) {}

absl::StatusOr<std::unique_ptr<SumLinks>> SumLinks::Create(std::vector<SumLinkOptions> aggregators,
                                                           std::size_t core_loops,
                                                           ControlThread& control,
                                                           const Clock& clock) {
  PHUB_CHECK(!aggregators.empty(), "core_loops={}", core_loops);
  std::unique_ptr<SumLinks> links(new SumLinks(control));
  for (SumLinkOptions& options : aggregators) {
    const auto address = CheckAddress(options.address);
    if (!address.ok()) return address.status();
    links->links_.push_back(std::make_unique<Link>(AggregatorIndex{links->aggregator_count()},
                                                   std::move(options.leases), *address, control,
                                                   clock));
  }
  for (std::size_t core = 0; core < core_loops; ++core) {
    Descriptor& events = links->events_.emplace_back(epoll_create1(EPOLL_CLOEXEC));
    if (events.get() < 0) return DescriptorShortage("watch sockets of sums", errno);
  }
  return links;
}

absl::Status SumLinks::Start() {
  for (const std::unique_ptr<Link>& link : links_) {
    if (absl::Status status = link->leases.Start(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

const std::string& SumLinks::NameOf(AggregatorIndex aggregator) const {
  return LinkOf(aggregator).name;
}

absl::StatusOr<std::unique_ptr<SumPort>> SumLinks::MakePort(AggregatorIndex aggregator,
                                                            CoreIndex core,
                                                            const aggregation::Geometry& geometry,
                                                            aggregation::CoreStream& stream,
                                                            phub_endpoint& here) {
  const aggregation::ParsedAddress& address = LinkOf(aggregator).address;
  auto socket = aggregation::DatagramSocket::Bind(address.storage, address.bytes);
  if (!socket.ok()) return socket.status();
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (epoll_ctl(events_[core.value].get(), EPOLL_CTL_ADD, socket->descriptor(), &event) != 0)
    return DescriptorShortage("watch a socket of sums", errno);
  here = socket->endpoint();
  return std::make_unique<SocketSumPort>(geometry, stream, *std::move(socket));
}

void SumLinks::Grant(AggregatorIndex aggregator, SumLeaseRequest request, Incarnation job,
                     CoreIndex core) {
  LinkOf(aggregator)
      .leases.Grant(std::move(request),
                    [this, aggregator, job, core](const absl::StatusOr<phub_lease>& lease) {
                      control_.Run([&](Control& locked) {
                        locked.sum_streams().HandleGranted(aggregator, job, core, lease);
                      });
                    });
}

void SumLinks::End(AggregatorIndex aggregator, aggregation::LeaseNumber number) {
  LinkOf(aggregator).leases.End(number);
}

absl::Status MakeSumLinks(const Settings& settings, std::size_t core_loops, Control& control,
                          ControlThread& control_thread, const Clock& clock,
                          std::unique_ptr<SumLinks>& links) {
  const auto aggregators = ParseSumAggregators(settings.sum_aggregator);
  if (!aggregators.ok()) return aggregators.status();
  if (aggregators->empty()) return absl::OkStatus();
  std::vector<SumLinkOptions> options;
  for (const std::string& aggregator : *aggregators) {
    auto address = AddressFor(settings, aggregator);
    if (!address.ok()) return address.status();
    options.push_back({.leases = {.aggregator = aggregator, .credentials = CredentialsOf(settings)},
                       .address = *std::move(address)});
  }
  auto created = SumLinks::Create(std::move(options), core_loops, control_thread, clock);
  if (!created.ok()) return created.status();
  links = *std::move(created);
  control.SetSumNetwork(*links);
  return links->Start();
}

int EventsOf(const SumLinks* links, std::size_t core) {
  return links == nullptr ? -1 : links->EventsOf(core);
}

}  // namespace phub::server
