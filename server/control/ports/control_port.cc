#include "server/control/ports/control_port.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/cpu_topology.h"
#include "common/base/errno_text.h"
#include "common/base/log.h"
#include "common/transport/tcp/tcp_socket.h"
#include "server/control/ports/listening_sockets.h"
#include "server/front/accepted_socket.h"

namespace phub::server {
namespace {

using transport::SocketAddress;

constexpr int kAcceptedAtOnce = 64;
constexpr int kEventsAtOnce = 64;
// Upper bound on the delay until the thread notices a stop request, a stranger's timeout or a free
// place. Known connections are numerous and are checked less often.
constexpr int kTurnMs = 50;
constexpr DurationNs kKnownSweep = kSecond;
ControlPortOptions ScaledToProcess(const ControlPortOptions& options) {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? ScaledTo(options, limit.rlim_cur) : options;
}

}  // namespace

ControlPortOptions ScaledTo(ControlPortOptions options, std::uint64_t descriptors) {
  const auto bound = [](std::uint32_t& limit, std::uint64_t most) {
    limit = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(limit, std::max<std::uint64_t>(most, 1)));
  };
  bound(options.connections_max, descriptors / 2);
  bound(options.connections_per_address_max, options.connections_max / 2);
  bound(options.silent_max, options.connections_max / 4);
  bound(options.silent_per_address_max, options.silent_max / 4);
  bound(options.strangers_max, options.connections_max / 8);
  bound(options.strangers_per_address_max, options.strangers_max / 4);
  return options;
}

struct ControlPort::Impl {
  explicit Impl(const ControlPortOptions& given) : options(ScaledToProcess(given)) {}

  struct Silent {
    Descriptor socket;
    int listening = -1;
    PeerText text;
    TimeNs since = 0;
    bool whole = false;
  };
  // A connection that was given to gRPC.
  struct Handed {
    int number = -1;
    std::uint64_t cookie = 0;
    std::string address;
    TimeNs since = 0;
    bool known = false;
  };
  struct Count {
    std::uint32_t silent = 0;
    std::uint32_t strangers = 0;
    std::uint32_t all = 0;
  };
  using Peers = std::unordered_map<std::string, Handed>;

  absl::Status Bind();
  void Loop();
  void Turn(const epoll_event* events, int count);
  void Accept(int listening);
  void Look(std::uint64_t id);
  void Sweep(TimeNs now);
  void HandOverWhole();
  bool MakePlace(const std::string& address);
  std::map<std::uint64_t, Silent>::iterator Drop(std::map<std::uint64_t, Silent>::iterator it);
  Peers::iterator Forget(Peers::iterator it);

  const ControlPortOptions options;
  std::uint16_t port = 0;
  Descriptor epoll;
  std::vector<Descriptor> listening;  // an event's id is the index here
  HandOver hand_over;
  Report report;
  SystemClock clock;
  std::atomic<bool> stopping{false};
  std::thread thread;
  bool starved = false;  // out of descriptors or memory
  // To give to gRPC: the listening descriptor, the connection.
  std::vector<std::pair<int, Descriptor>> ready;

  std::mutex mutex;  // between the thread and MarkKnown; guards all that follows
  std::uint64_t next_id = 0;
  std::map<std::uint64_t, Silent> silent;  // the oldest first
  Peers handed;                            // given to gRPC, by peer
  std::map<std::string, Count> counts;     // by address
  std::uint32_t strangers = 0;
  TimeNs swept = 0;
  TimeNs known_swept = 0;
  ControlPortRefusals refused;
};

absl::Status ControlPort::Impl::Bind() {
  auto made = ListenForControl(options.host, options.port);
  if (!made.ok()) return made.status();
  port = made->port;
  listening = std::move(made->sockets);
  epoll = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  for (next_id = 0; epoll && next_id < listening.size(); ++next_id) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = next_id}};
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, listening[next_id].get(), &event) != 0) break;
  }
  if (!epoll || next_id < listening.size()) {
    return absl::UnavailableError(
        fmt::format("cannot watch the control port: {}", ErrnoText(errno)));
  }
  return absl::OkStatus();
}

void ControlPort::Impl::Loop() {
  NameThisThread("control-port");
  epoll_event events[kEventsAtOnce];
  while (!stopping.load(std::memory_order_relaxed)) {
    const int count = epoll_wait(epoll.get(), events, kEventsAtOnce, kTurnMs);
    ControlPortRefusals refusals;
    {
      const std::lock_guard lock(mutex);
      Turn(events, std::max(count, 0));
      refusals = std::exchange(refused, {});
    }
    // Waits for descriptors or memory to become free. Meanwhile the kernel queues new connections.
    if (starved) std::this_thread::sleep_for(std::chrono::milliseconds(kTurnMs));
    // Without the lock, since gRPC may call back.
    for (auto& [from, connection] : ready) hand_over(from, std::move(connection));
    ready.clear();
    if (refusals.any()) report(refusals);
  }
}

void ControlPort::Impl::Turn(const epoll_event* events, int count) {
  starved = false;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[i].data.u64;
    if (id < listening.size()) {
      Accept(listening[id].get());
    } else {
      Look(id);
    }
  }
  if (const TimeNs now = clock.Now(); now - swept >= kTurnMs * kMillisecond) {
    swept = now;
    Sweep(now);
  }
  HandOverWhole();
}

void ControlPort::Impl::Accept(int from) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    SocketAddress address;
    address.bytes = sizeof address.storage;
    Descriptor socket(accept4(from, address.get(), &address.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      starved |= errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      return;
    }
    PeerText text = PeerTextOf(address);
    Count& count = counts[text.address];
    const std::uint64_t id = next_id++;
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data = {.u64 = id}};
    if (silent.size() >= options.silent_max ||
        silent.size() + handed.size() >= options.connections_max ||
        count.silent >= options.silent_per_address_max ||
        count.all >= options.connections_per_address_max ||
        epoll_ctl(epoll.get(), EPOLL_CTL_ADD, socket.get(), &event) != 0) {
      if (count.all == 0) counts.erase(text.address);
      ++refused.crowd;
      continue;
    }
    ++count.silent;
    ++count.all;
    silent.emplace(id, Silent{std::move(socket), from, std::move(text), clock.Now()});
  }
}

std::map<std::uint64_t, ControlPort::Impl::Silent>::iterator ControlPort::Impl::Drop(
    std::map<std::uint64_t, Silent>::iterator it) {
  const auto count = counts.find(it->second.text.address);
  --count->second.silent;
  if (--count->second.all == 0) counts.erase(count);
  return silent.erase(it);
}

ControlPort::Impl::Peers::iterator ControlPort::Impl::Forget(Peers::iterator it) {
  const auto count = counts.find(it->second.address);
  if (!it->second.known) {
    --count->second.strangers;
    --strangers;
  }
  if (--count->second.all == 0) counts.erase(count);
  return handed.erase(it);
}

void ControlPort::Impl::Look(std::uint64_t id) {
  const auto found = silent.find(id);
  if (found == silent.end()) return;
  switch (LookAtFirstMessage(found->second.socket.get(), options.tls)) {
    case FirstMessage::kMore: return;
    case FirstMessage::kWhole: found->second.whole = true; return;
    case FirstMessage::kBad: ++refused.form; break;
    case FirstMessage::kGone: break;
  }
  Drop(found);
}

void ControlPort::Impl::Sweep(TimeNs now) {
  for (auto it = silent.begin(); it != silent.end();) {
    const DurationNs limit =
        it->second.whole ? options.stranger_timeout : options.first_message_timeout;
    const bool late = now - it->second.since >= limit;
    refused.late += late ? 1 : 0;
    it = late ? Drop(it) : std::next(it);
  }
  const bool sweeps_known = now - known_swept >= kKnownSweep;
  if (sweeps_known) known_swept = now;
  if (strangers == 0 && !sweeps_known) return;
  for (auto it = handed.begin(); it != handed.end();) {
    const Handed& each = it->second;
    const bool looked_at = !each.known || sweeps_known;
    const bool gone = looked_at && CookieOf(each.number) != each.cookie;
    const bool late = !gone && !each.known && now - each.since >= options.stranger_timeout;
    if (late) {
      ++refused.late;
      ShutDown(each.number, each.cookie);
    }
    it = gone || late ? Forget(it) : std::next(it);
  }
}

// Whether the address has a place for a stranger, if necessary by closing the oldest stranger.
bool ControlPort::Impl::MakePlace(const std::string& address) {
  const bool own_full = counts[address].strangers >= options.strangers_per_address_max;
  if (!own_full && strangers < options.strangers_max) return true;
  auto oldest = handed.end();
  for (auto it = handed.begin(); it != handed.end(); ++it) {
    if (it->second.known || (own_full && it->second.address != address)) continue;
    if (oldest == handed.end() || it->second.since < oldest->second.since) oldest = it;
  }
  if (oldest == handed.end()) return false;
  if (clock.Now() - oldest->second.since < options.displaced_after) return false;
  ++refused.crowd;
  ShutDown(oldest->second.number, oldest->second.cookie);
  Forget(oldest);
  return true;
}

// The newest connections first: if an address has too many strangers, a client that has just
// connected is still waiting for an answer.
void ControlPort::Impl::HandOverWhole() {
  std::set<std::string> full;  // addresses without a place; rarely more than a few
  for (auto it = silent.end(); it != silent.begin();) {
    Silent& each = (--it)->second;
    if (!each.whole || full.contains(each.text.address)) continue;
    if (!MakePlace(each.text.address)) {
      if (strangers >= options.strangers_max) return;
      full.insert(each.text.address);
      continue;
    }
    epoll_ctl(epoll.get(), EPOLL_CTL_DEL, each.socket.get(), nullptr);
    const Handed given{each.socket.get(), CookieOf(each.socket.get()), each.text.address,
                       clock.Now()};
    if (const auto old = handed.find(each.text.peer); old != handed.end()) {
      // The peer connected from the same port to another address of this host. gRPC's peer names
      // cannot distinguish the two connections.
      if (CookieOf(old->second.number) == old->second.cookie) {
        ++refused.crowd;
        it = Drop(it);
        continue;
      }
      Forget(old);  // closed, and the same peer has connected again since
    }
    ready.emplace_back(each.listening, std::move(each.socket));
    handed[each.text.peer] = given;
    Count& count = counts[given.address];
    ++count.strangers;
    ++count.all;
    ++strangers;
    it = Drop(it);
  }
}

absl::StatusOr<std::unique_ptr<ControlPort>> ControlPort::Create(
    const ControlPortOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (absl::Status status = impl->Bind(); !status.ok()) return status;
  return std::unique_ptr<ControlPort>(new ControlPort(std::move(impl)));
}

ControlPort::ControlPort(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlPort::~ControlPort() { Stop(); }

std::uint16_t ControlPort::port() const { return impl_->port; }

void ControlPort::Start(HandOver hand_over, Report report) {
  impl_->hand_over = std::move(hand_over);
  impl_->report = std::move(report);
  impl_->thread = std::thread([this] { impl_->Loop(); });
}

void ControlPort::Stop() {
  impl_->stopping.store(true, std::memory_order_relaxed);
  if (impl_->thread.joinable()) impl_->thread.join();
  impl_->listening.clear();
}

void ControlPort::MarkKnown(const std::string& peer) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->handed.find(peer);
  if (found == impl_->handed.end() || found->second.known) return;
  found->second.known = true;
  --impl_->counts[found->second.address].strangers;
  --impl_->strangers;
}

}  // namespace phub::server
