#include "server/front/front_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "server/front/accepted_socket.h"
#include "server/front/front_limits.h"

namespace phub::server {
namespace {

constexpr int kEventsAtOnce = 128;
// Fewer than events, so that connections that were accepted make progress first.
constexpr int kAcceptedAtOnce = 16;
constexpr std::size_t kFullBlocksMax = 64;  // bounds the work of one turn
constexpr int kWholeWaitMs = 10;
constexpr DurationNs kSweepEvery = 50 * kMillisecond;
constexpr DurationNs kIdleWait = 250 * kMillisecond;
constexpr DurationNs kLastFlush = 500 * kMillisecond;
// What an event is about: a connection's id and its side, or one of these.
constexpr std::uint64_t kPairEvent = ~std::uint64_t{0};
constexpr std::uint64_t kListeningEvents = kPairEvent - kFrontListeningMax;
constexpr std::uint32_t kStreamEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

std::uint64_t ClientEvent(std::uint64_t id) { return id * 2; }
std::uint64_t UpstreamEvent(std::uint64_t id) { return id * 2 + 1; }

bool Watch(int epoll, int descriptor, std::uint32_t events, std::uint64_t what) {
  epoll_event event{.events = events, .data = {.u64 = what}};
  return epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

}  // namespace

FrontLoop::FrontLoop(Descriptor pair, int first_listening, int listening_count,
                     const CrowdLimits& limits)
    : epoll_(epoll_create1(EPOLL_CLOEXEC)), pair_(std::move(pair)), crowd_(limits) {
  PHUB_CHECK(epoll_ && Watch(epoll_.get(), pair_.get(), EPOLLIN, kPairEvent), "errno={}", errno);
  for (int i = 0; i < listening_count; ++i) listening_.emplace_back(first_listening + i);
  heard_ = clock_.Now();
}

void FrontLoop::Run(bool confined) {
  Send(PacketWriter(PacketType::kReady).U64(confined ? 1 : 0).Take());
  std::vector<epoll_event> events(kEventsAtOnce);
  while (!Ended()) {
    const int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, WaitMs());
    PHUB_CHECK(count >= 0 || errno == EINTR, "errno={}", errno);
    bool accepts = false;
    for (int i = 0; i < count; ++i) {
      accepts |= events[i].data.u64 >= kListeningEvents && events[i].data.u64 != kPairEvent;
      Handle(events[i].data.u64, events[i].events);
    }
    const TimeNs now = clock_.Now();
    TurnBusy(now);
    starved_ = false;
    if (accepts && !draining_) {
      for (const Descriptor& each : listening_) Accept(each.get());
    }
    PromoteSilent(now);
    // The kernel queues new connections meanwhile.
    if (starved_) std::this_thread::sleep_for(std::chrono::milliseconds(kWholeWaitMs));
    if (now - swept_ >= kSweepEvery || starved_) Sweep(now);
    if (now - reported_ >= (report_.any() ? kSweepEvery : kReportEvery)) Report(now);
    SendWaiting();
  }
}

int FrontLoop::WaitMs() const {
  if (!busy_.empty()) return 0;
  if (!whole_.empty()) return kWholeWaitMs;
  const bool strangers = crowd_.silent() + crowd_.strangers() > 0;
  return static_cast<int>((strangers ? kSweepEvery : kIdleWait) / kMillisecond);
}

void FrontLoop::Handle(std::uint64_t what, std::uint32_t events) {
  if (what == kPairEvent) return ReadPair();
  if (what >= kListeningEvents) return;
  const auto found = connections_.find(what / 2);
  if (found == connections_.end()) return;
  FrontConnection& connection = *found->second;
  const bool readable = (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0;
  const bool writable = (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
  if (what % 2 == 1) {
    connection.NoteUpstream(readable, writable);
  } else if (connection.state() == FrontConnection::State::kSilent) {
    if (readable) LookAtSilent(connection);
  } else {
    connection.NoteClient(readable, writable);
  }
  busy_.insert(what / 2);
}

void FrontLoop::Accept(int listening) {
  for (int i = 0; i < kAcceptedAtOnce; ++i) {
    net::SocketAddress address;
    address.bytes = sizeof address.storage;
    Descriptor socket(
        accept4(listening, address.get(), &address.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      starved_ |= errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      return;
    }
    const std::uint64_t id = next_id_++;
    const TimeNs now = clock_.Now();
    const Crowd::Place place = crowd_.Add(id, BlockOf(address), now);
    if (place.displaced.has_value()) CloseFor(*place.displaced, report_.crowd);
    if (!place.granted) {
      ++report_.crowd;
      continue;
    }
    const int number = socket.get();
    connections_[id] = std::make_unique<FrontConnection>(*this, id, std::move(socket),
                                                         PeerTextOf(address).peer, now);
    if (!Watch(epoll_.get(), number, kStreamEvents, ClientEvent(id))) CloseFor(id, report_.crowd);
  }
}

void FrontLoop::LookAtSilent(FrontConnection& connection) {
  switch (LookAtFirstMessage(connection.client_socket(), tls_ != nullptr)) {
    case FirstMessage::kMore: return;
    case FirstMessage::kWhole: whole_.insert(connection.id()); return;
    case FirstMessage::kBad: return connection.Close(FrontConnection::End::kForm);
    case FirstMessage::kGone: return connection.Close(FrontConnection::End::kNormal);
  }
}

// The newest first: a client that has just connected still waits for an answer.
void FrontLoop::PromoteSilent(TimeNs now) {
  const std::vector<std::uint64_t> newest(whole_.rbegin(), whole_.rend());
  std::set<std::string> full;  // blocks without a place
  for (const std::uint64_t id : newest) {
    const std::string& block = crowd_.block(id);
    if (full.contains(block)) continue;
    const Crowd::Place place = crowd_.MakeStranger(id, now);
    if (!place.granted) {
      full.insert(block);
      if (full.size() >= kFullBlocksMax) return;
      continue;
    }
    whole_.erase(id);
    if (place.displaced.has_value()) CloseFor(*place.displaced, report_.crowd);
    connections_.at(id)->Start(tls_, now);
    busy_.insert(id);
  }
}

void FrontLoop::TurnBusy(TimeNs now) {
  for (const std::uint64_t id : std::exchange(busy_, {})) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    FrontConnection& connection = *found->second;
    if (connection.Turn(now)) busy_.insert(id);
    if (connection.state() == FrontConnection::State::kClosed) {
      Remove(found);
      continue;
    }
    std::size_t& excess = excess_[id];
    excess_bytes_ += connection.excess_bytes() - excess;
    excess = connection.excess_bytes();
    if (excess_bytes_ > kHeldBytesMax) CutLargest();
  }
}

void FrontLoop::CutLargest() {
  const auto largest = std::ranges::max_element(
      excess_, [](const auto& left, const auto& right) { return left.second < right.second; });
  CloseFor(largest->first, report_.memory);
}

void FrontLoop::CloseFor(std::uint64_t id, std::uint64_t& counter) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  ++counter;
  found->second->Close(FrontConnection::End::kNormal);
  Remove(found);
}

void FrontLoop::Remove(Connections::iterator it) {
  FrontConnection& connection = *it->second;
  report_.calls += connection.TakeRefusedCalls();
  switch (connection.end()) {
    case FrontConnection::End::kNormal: break;
    case FrontConnection::End::kForm: ++report_.form; break;
    case FrontConnection::End::kFlood: ++report_.flood; break;
    case FrontConnection::End::kMemory: ++report_.memory; break;
  }
  const std::uint64_t id = it->first;
  if (connection.opened()) Send(PacketWriter(PacketType::kGone).U64(id).Take());
  if (const auto held = excess_.find(id); held != excess_.end()) {
    excess_bytes_ -= held->second;
    excess_.erase(held);
  }
  crowd_.Remove(id);
  whole_.erase(id);
  connections_.erase(it);
}

void FrontLoop::Sweep(TimeNs now) {
  swept_ = now;
  for (auto it = connections_.begin(); it != connections_.end();) {
    const auto each = it++;
    report_.late += each->second->Sweep(now) ? 1 : 0;
    report_.calls += each->second->TakeRefusedCalls();
    if (const std::uint64_t ended = each->second->TakeUnfinishedEnded(); ended > 0) {
      report_.unfinished += ended;
      busy_.insert(each->first);
    }
    if (each->second->state() == FrontConnection::State::kClosed) Remove(each);
  }
  SetServing(told_serving_ && now - heard_ < kServerSilenceMax);
}

void FrontLoop::SetServing(bool serving) {
  if (std::exchange(serving_, serving) == serving) return;
  for (const auto& [id, connection] : connections_) {
    connection->SetServing(serving);
    busy_.insert(id);
  }
}

void FrontLoop::Judge(const FrontCall& call) { Send(ToPacket(call)); }

void FrontLoop::ReadPair() {
  Packet packet;
  for (;;) {
    switch (ReceivePacket(pair_.get(), packet)) {
      case PairState::kDone: OnPacket(packet); break;
      case PairState::kBlocked: return;
      case PairState::kEnded:
        pair_ended_ = draining_ = true;
        end_at_ = clock_.Now() + kLastFlush;
        listening_.clear();
        epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pair_.get(), nullptr);
        return;
    }
  }
}

void FrontLoop::OnPacket(Packet& packet) {
  heard_ = clock_.Now();
  switch (packet.type) {
    case PacketType::kTls: return OnTls(packet);
    case PacketType::kHealth:
      told_serving_ = PacketReader(packet.body).U64() != 0;
      return SetServing(told_serving_);
    case PacketType::kVerdict: return OnVerdict(packet);
    case PacketType::kDrain:
      draining_ = true;
      listening_.clear();
      return;
    default: return;
  }
}

void FrontLoop::OnTls(Packet& packet) {
  if (packet.descriptor) {
    const auto texts = ReadSealedTexts(packet.descriptor.get(), 3);
    std::string why;
    TlsContext made =
        texts.has_value() ? MakeTlsContext((*texts)[0], (*texts)[1], (*texts)[2], why) : nullptr;
    Send(PacketWriter(PacketType::kTls).U64(made != nullptr ? 1 : 0).Text(why).Take());
    if (made == nullptr) return;  // the previous pair stays
    tls_ = std::move(made);
  }
  if (std::exchange(configured_, true)) return;
  for (std::size_t i = 0; i < listening_.size(); ++i) {
    PHUB_CHECK(Watch(epoll_.get(), listening_[i].get(), EPOLLIN, kListeningEvents + i), "errno={}",
               errno);
  }
}

void FrontLoop::OnVerdict(Packet& packet) {
  const auto verdict = ReadFrontVerdict(packet.body);
  if (!verdict.has_value()) return;
  if (verdict->displaces) Displace(verdict->displaced_tenant, verdict->displaced_block);
  const std::uint64_t id = verdict->connection;
  const auto found = connections_.find(id);
  if (found == connections_.end()) {
    if (packet.descriptor) Send(PacketWriter(PacketType::kGone).U64(id).Take());
    return;
  }
  busy_.insert(id);
  if (!packet.descriptor) return found->second->Refuse(verdict->code, verdict->message);
  const int number = packet.descriptor.get();
  found->second->Open(std::move(packet.descriptor));
  crowd_.MakeKnown(id, verdict->tenant);
  if (!Watch(epoll_.get(), number, kStreamEvents, UpstreamEvent(id))) {
    CloseFor(id, report_.memory);
  }
}

// Its client sees a connection that has ended, as after the loss of a front, and connects again.
void FrontLoop::Displace(const std::string& tenant, const std::string& block) {
  const auto displaced = crowd_.DisplaceKnown(
      tenant, block, [this](std::uint64_t id) { return connections_.at(id)->use(); });
  if (displaced.has_value()) CloseFor(*displaced, report_.crowd);
}

void FrontLoop::Send(std::string packet) {
  to_phubd_.push_back(std::move(packet));
  SendWaiting();
}

void FrontLoop::SendWaiting() {
  while (!to_phubd_.empty()) {
    if (SendPacket(pair_.get(), to_phubd_.front()) == PairState::kBlocked) return;
    to_phubd_.pop_front();
  }
}

void FrontLoop::Report(TimeNs now) {
  reported_ = now;
  // phubd does not read: the next report has it all.
  if (!to_phubd_.empty()) return;
  Send(ToPacket(std::exchange(report_, {})));
}

}  // namespace phub::server
