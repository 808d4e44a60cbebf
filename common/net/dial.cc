#include "common/net/dial.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "common/base/errno_text.h"
#include "common/base/shortage.h"

namespace phub::net {
namespace {

// Rounded up, so that the last millisecond is not a busy loop.
int PollTimeout(DurationNs left) {
  return static_cast<int>(
      std::clamp<DurationNs>(left / kMillisecond + 1, 0, std::numeric_limits<int>::max()));
}

// The attempts to connect to one host.
class Race {
 public:
  Race(std::span<const SocketAddress> addresses, const Deadline& deadline, const MakeSocket& make)
      : addresses_(Interleaved(addresses)),
        deadline_(deadline),
        make_(make),
        // A short timeout must leave time for every address.
        next_after_(std::min(kNextAddressAfter,
                             deadline.timeout / static_cast<DurationNs>(addresses.size() + 1))) {}

  // The winner's socket, or empty if every attempt failed or time is up.
  Dialled Run();
  absl::Status Error(const std::string& peer) const;

 private:
  struct Attempt {
    const SocketAddress* address;
    Descriptor socket;       // empty: it failed
    std::string cause = {};  // why it failed
  };

  void StartNext();
  // Takes the attempt's result. True if it is connected.
  bool Settle(Attempt& attempt);
  bool AnyPending() const;
  // Waits until an attempt has a result, or until the next one is due.
  Attempt* WaitForWinner();
  static void Fail(Attempt& attempt, std::string cause) {
    attempt.socket = {};
    attempt.cause = std::move(cause);
  }

  const std::vector<SocketAddress> addresses_;
  const Deadline& deadline_;
  const MakeSocket& make_;
  const DurationNs next_after_;
  std::vector<Attempt> attempts_;  // those that were started
  TimeNs next_at_ = 0;
  bool shortage_ = false;  // a socket could not be created
};

void Race::StartNext() {
  const SocketAddress& address = addresses_[attempts_.size()];
  Attempt& attempt = attempts_.emplace_back(Attempt{&address, make_(address.storage.ss_family)});
  next_at_ = deadline_.clock.Now() + next_after_;
  if (!attempt.socket) {
    const int error = errno;  // a host without IPv6 has no sockets of that family
    shortage_ |= IsDescriptorShortage(error);
    return Fail(attempt, "cannot create a socket: " + DescriptorErrorText(error));
  }
  if (connect(attempt.socket.get(), address.get(), address.bytes) == 0) return;
  if (errno != EINPROGRESS && errno != EINTR) Fail(attempt, ErrnoText(errno));
}

bool Race::AnyPending() const {
  return std::any_of(attempts_.begin(), attempts_.end(),
                     [](const Attempt& each) { return static_cast<bool>(each.socket); });
}

bool Race::Settle(Attempt& attempt) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  if (error == 0) return true;
  Fail(attempt, ErrnoText(error));
  return false;
}

Race::Attempt* Race::WaitForWinner() {
  std::vector<pollfd> items;
  std::vector<Attempt*> pending;
  for (Attempt& each : attempts_) {
    if (!each.socket) continue;
    items.push_back({each.socket.get(), POLLOUT, 0});
    pending.push_back(&each);
  }
  const TimeNs until =
      attempts_.size() < addresses_.size() ? std::min(next_at_, deadline_.at) : deadline_.at;
  if (poll(items.data(), items.size(), PollTimeout(until - deadline_.clock.Now())) <= 0) {
    return nullptr;
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].revents != 0 && Settle(*pending[i])) return pending[i];
  }
  return nullptr;
}

Dialled Race::Run() {
  while (deadline_.clock.Now() < deadline_.at) {
    const bool more = attempts_.size() < addresses_.size();
    if (more && (!AnyPending() || deadline_.clock.Now() >= next_at_)) {
      StartNext();
    } else if (!AnyPending()) {
      return {};
    }
    if (!AnyPending()) continue;
    if (Attempt* const winner = WaitForWinner(); winner != nullptr) {
      return {std::move(winner->socket), *winner->address};
    }
  }
  for (Attempt& each : attempts_) {
    if (!each.socket) continue;
    Fail(each, fmt::format("could not be reached within {} ms; a firewall probably drops packets, "
                           "or the host is down or overloaded",
                           deadline_.timeout / kMillisecond));
  }
  return {};
}

absl::Status Race::Error(const std::string& peer) const {
  std::string causes;
  for (const Attempt& each : attempts_) {
    causes +=
        fmt::format("{}{}: {}", causes.empty() ? "" : "; ", AddressText(*each.address), each.cause);
  }
  // A peer that is an address, such as "10.0.0.1:7700", need not be repeated.
  const bool is_address =
      attempts_.size() == 1 && AddressAndPortText(*attempts_.front().address) == peer;
  const bool late = deadline_.clock.Now() >= deadline_.at;
  const absl::StatusCode code = shortage_ ? absl::StatusCode::kResourceExhausted
                                : late    ? absl::StatusCode::kDeadlineExceeded
                                          : absl::StatusCode::kUnavailable;
  return absl::Status(
      code, is_address ? fmt::format("cannot connect to {}: {}", peer, attempts_.front().cause)
                       : fmt::format("cannot connect to {} ({})", peer, causes));
}

}  // namespace

bool WaitSocket(int socket, short events, TimeNs deadline, const Clock& clock) {
  for (;;) {
    const DurationNs left = deadline - clock.Now();
    if (left <= 0) return false;
    pollfd item{socket, events, 0};
    const int result = poll(&item, 1, PollTimeout(left));
    if (result > 0) return true;
    if (result < 0 && errno != EINTR) return true;  // the next call on the socket reports the error
  }
}

std::vector<SocketAddress> Interleaved(std::span<const SocketAddress> addresses) {
  std::vector<SocketAddress> firsts;
  std::vector<SocketAddress> others;
  for (const SocketAddress& each : addresses) {
    const bool first = each.storage.ss_family == addresses.front().storage.ss_family;
    (first ? firsts : others).push_back(each);
  }
  std::vector<SocketAddress> order;
  for (std::size_t i = 0; i < std::max(firsts.size(), others.size()); ++i) {
    if (i < firsts.size()) order.push_back(firsts[i]);
    if (i < others.size()) order.push_back(others[i]);
  }
  return order;
}

Descriptor PlainSocket(sa_family_t family) {
  return Descriptor(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

absl::StatusOr<Dialled> DialFirst(std::span<const SocketAddress> addresses, const std::string& peer,
                                  const Deadline& deadline, const MakeSocket& make) {
  Race race(addresses, deadline, make);
  Dialled winner = race.Run();
  if (!winner.socket) return race.Error(peer);
  return winner;
}

absl::StatusOr<Dialled> Dial(const std::string& host, std::uint16_t port, const Deadline& deadline,
                             const MakeSocket& make) {
  const absl::StatusOr<std::vector<SocketAddress>> addresses =
      Resolve(host, port, /*passive=*/false);
  if (!addresses.ok()) return addresses.status();
  return DialFirst(*addresses, HostPort(host, port), deadline, make);
}

}  // namespace phub::net
