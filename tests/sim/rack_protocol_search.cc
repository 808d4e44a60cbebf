#include "tests/sim/rack_protocol_search.h"

#include <utility>

namespace phub::server::rack_search {

const std::string& Search::Run() {
  world_.left = All() & ~(Bit(shape_.with_ranks) - 1);
  Create(0);
  SendToAll(0, Word::kOpen);
  here_ = Fingerprint();
  Explore();
  return wrong_;
}

void Search::Require(bool good, std::string_view what) {
  if (good || !wrong_.empty()) return;
  wrong_ = std::string(what) + ":" + path_;
}

void Search::Create(std::uint32_t rack) {
  Daemon& daemon = At(rack);
  daemon.job = Daemon::Job::kRunning;
  daemon.protocol.emplace(RackIndex{rack}, shape_.racks, shape_.with_ranks, shape_.neighbors[rack],
                          All(), rules_);
}

void Search::Send(std::uint32_t from, std::uint32_t to, Word word) {
  if (from == to) return Require(false, "speaks to itself");
  if (At(from).protocol && At(from).protocol->crowded_out() && word != Word::kFailed) return;
  if (!At(to).dead) At(from).queues[to] += static_cast<char>(word);
}

void Search::SendToAll(std::uint32_t from, Word word) {
  for (std::uint32_t to = 0; to < shape_.racks; ++to) {
    if (to != from && (All() & Bit(to)) != 0) Send(from, to, word);
  }
}

void Search::CloseLanes(std::uint32_t rack) {
  for (std::uint32_t other = 0; other < shape_.racks; ++other) {
    if ((At(other).attached & Bit(rack)) != 0) At(other).losses |= Bit(rack);
  }
  At(rack).attached = At(rack).losses = 0;
  At(rack).dialling = At(rack).opened = 0;
}

void Search::Do(std::uint32_t rack, const RackSteps& steps) {
  for (const RackStep& step : steps) Do(rack, step);
}

void Search::Do(std::uint32_t rack, const RackStep& step) {
  Daemon& daemon = At(rack);
  const std::uint32_t other = step.rack.value;
  switch (step.action) {
    case RackAction::kTellConnect: return SendToAll(rack, Word::kConnect);
    case RackAction::kGrantLanes:
      Require((daemon.granted & Bit(other)) == 0, "granted twice");
      daemon.granted |= Bit(other);
      return Send(rack, other, Word::kGrants);
    case RackAction::kDialLanes:
      Require((At(other).granted & Bit(rack)) != 0 || At(other).dead || At(other).instance > 1,
              "dialled what was not granted");
      Require((daemon.dialled & Bit(other)) == 0, "dialled twice");
      daemon.dialled |= Bit(other);
      daemon.dialling |= Bit(other);
      return;
    case RackAction::kSayReady: return Send(rack, 0, Word::kReady);
    case RackAction::kTellStart: return SendToAll(rack, Word::kStart);
    case RackAction::kStand:
      world_.ready |= daemon.protocol->IsReady(RackIndex{rack}) ? Bit(rack) : 0;
      return Require(world_.ready == All(), "stands before every rack is ready");
    case RackAction::kSayLeft: return SendToAll(rack, Word::kLeft);
    case RackAction::kEndInOrder:
      Require(world_.left == All(), "ended before all ranks had left");
      daemon.job = Daemon::Job::kEnded;
      return CloseLanes(rack);
    case RackAction::kTellFailed: return SendToAll(rack, Word::kFailed);
    case RackAction::kFail: return Fail(rack);
    case RackAction::kRefuse: return Require(false, "refuses what an honest rack says");
    default: return;
  }
}

void Search::Fail(std::uint32_t rack) {
  if (!Runs(rack)) return;
  At(rack).job = Daemon::Job::kFailed;
  Do(rack, At(rack).protocol->On(RunEvent::kFailedHere));
  CloseLanes(rack);
}

void Search::Advance(std::uint32_t rack) {
  Daemon& daemon = At(rack);
  if (!Runs(rack)) return;
  if (daemon.acknowledged) Do(rack, daemon.protocol->On(RunEvent::kOpenedHere));
  if (daemon.protocol->connecting() && daemon.attached == shape_.neighbors[rack]) {
    Do(rack, daemon.protocol->On(RunEvent::kLanesAttached));
  }
  if (daemon.protocol->IsReady(RackIndex{rack})) world_.ready |= Bit(rack);
}

void Search::EndIfAllLeft(std::uint32_t rack) {
  if (!Runs(rack)) return;
  if ((world_.left & Bit(rack)) != 0) Do(rack, At(rack).protocol->On(RunEvent::kRanksLeft));
  if (Runs(rack)) Do(rack, At(rack).protocol->On(RunEvent::kEndAllowed));
}

void Search::HandleOpen(std::uint32_t rack, bool refuses) {
  if (refuses) return Send(rack, 0, Word::kRefused);
  if (At(rack).job != Daemon::Job::kAbsent) return;
  Create(rack);
  Do(rack, At(rack).protocol->OnPeer(RackIndex{0}, PeerEvent::kSpoke, At(0).instance));
  Send(rack, 0, Word::kOpened);
}

void Search::Handle(std::uint32_t from, std::uint32_t rack, Word word) {
  if (word == Word::kOpen) return HandleOpen(rack, false);
  if (!Runs(rack)) return;
  RackProtocol& protocol = *At(rack).protocol;
  const RackIndex peer{from};
  if (word == Word::kRestarted) {
    return Do(rack, protocol.OnPeer(peer, PeerEvent::kRestarted, At(from).instance));
  }
  Do(rack, protocol.OnPeer(peer, PeerEvent::kSpoke, At(from).instance));
  switch (word) {
    case Word::kOpened: Do(rack, protocol.OnPeer(peer, PeerEvent::kSaysOpened)); break;
    case Word::kRefused: return Fail(rack);
    case Word::kConnect: return Do(rack, protocol.On(RunEvent::kConnectReceived, peer));
    case Word::kGrants: return Do(rack, protocol.OnPeer(peer, PeerEvent::kLanesOffered));
    case Word::kReady: Do(rack, protocol.OnPeer(peer, PeerEvent::kSaysReady)); break;
    case Word::kStart: return Do(rack, protocol.On(RunEvent::kStartReceived, peer));
    case Word::kLeft:
      Do(rack, protocol.OnPeer(peer, PeerEvent::kSaysLeft));
      return EndIfAllLeft(rack);
    case Word::kFailed: return Do(rack, protocol.On(RunEvent::kFailureReceived, peer));
    default: break;
  }
  Advance(rack);
}

template <typename Step>
void Search::Try(std::string_view name, std::uint32_t rack, std::uint32_t other, Step&& step) {
  if (!wrong_.empty()) return;
  const World before = world_;
  const std::string fingerprint = here_;
  const bool moved = moved_;
  const std::size_t length = path_.size();
  path_ += " " + std::string(name) + std::to_string(rack) + std::to_string(other);
  step();
  here_ = Fingerprint();
  const bool changes = here_ != fingerprint;
  if (changes) Explore();
  moved_ = moved || changes;
  here_ = fingerprint;
  world_ = before;
  path_.resize(length);
}

void Search::TryMessages(std::uint32_t from, std::uint32_t to) {
  const std::string& queue = At(from).queues[to];
  if (queue.empty()) return;
  const Word word = static_cast<Word>(queue.front());
  const auto take = [&] { At(from).queues[to].erase(0, 1); };
  Try(std::string(1, static_cast<char>(word)), from, to, [&] {
    take();
    Handle(from, to, word);
  });
  if (word == Word::kOpen && Troubled(Trouble::kRefusal)) {
    Try("refuse", to, from, [&] {
      ++world_.troubles;
      take();
      HandleOpen(to, true);
    });
  }
  if (Runs(from) && Troubled(Trouble::kDropping)) {
    Try("drop", from, to, [&] {
      ++world_.troubles;
      At(from).queues[to].clear();
      Do(from, At(from).protocol->On(RunEvent::kMessagesDropped));
    });
  }
}

void Search::TryLanes(std::uint32_t rack, std::uint32_t other) {
  Daemon& daemon = At(rack);
  if (!Runs(rack)) return;
  if ((daemon.dialling & Bit(other)) != 0) {
    Try("dial", rack, other, [&] {
      At(rack).dialling &= ~Bit(other);
      if (!Runs(other)) return Lose(rack, other);
      At(rack).opened |= Bit(other);
      At(other).opened |= Bit(rack);
    });
  }
  if ((daemon.opened & Bit(other)) != 0) {
    Try("attach", rack, other, [&] {
      At(rack).opened &= ~Bit(other);
      At(rack).attached |= Bit(other);
      if (!Runs(other)) At(rack).losses |= Bit(other);
      Advance(rack);
    });
  }
  if ((daemon.losses & Bit(other)) != 0) {
    Try("lose", rack, other, [&] { Lose(rack, other); });
  }
}

void Search::Lose(std::uint32_t rack, std::uint32_t other) {
  At(rack).losses &= ~Bit(other);
  At(rack).attached &= ~Bit(other);
  Do(rack, At(rack).protocol->On(RunEvent::kLaneLost, RackIndex{other}, 1));
}

void Search::TryAlone(std::uint32_t rack) {
  if (!Runs(rack)) return;
  const RackProtocol& protocol = *At(rack).protocol;
  if (!At(rack).acknowledged) {
    Try("ack", rack, rack, [&] {
      At(rack).acknowledged = true;
      Advance(rack);
    });
  }
  if (protocol.standing() && (world_.left & Bit(rack)) == 0) {
    Try("leave", rack, rack, [&] {
      world_.left |= Bit(rack);
      EndIfAllLeft(rack);
    });
  }
  if (protocol.put_off_due() && HasTimers()) {
    Try("due", rack, rack, [&] { Do(rack, At(rack).protocol->On(RunEvent::kPutOffDue, {}, 1)); });
  }
  if (protocol.crowded_out()) {
    Try("check", rack, rack, [&] { Do(rack, At(rack).protocol->On(RunEvent::kQueuesChecked)); });
  }
  if (Troubled(Trouble::kFailure)) {
    Try("fail", rack, rack, [&] {
      ++world_.troubles;
      Fail(rack);
    });
  }
}

bool Search::Troubled(Trouble trouble) const {
  return shape_.trouble == trouble && world_.troubles < shape_.troubles;
}

void Search::TryDeath(std::uint32_t rack) {
  if ((shape_.absent & Bit(rack)) != 0) return;
  if (!At(rack).dead && Troubled(Trouble::kDeath)) {
    Try("die", rack, rack, [&] {
      ++world_.troubles;
      CloseLanes(rack);
      const std::uint32_t instance = At(rack).instance;
      At(rack) = Daemon{};
      At(rack).dead = true;
      At(rack).instance = instance;
      for (std::uint32_t other = 0; other < shape_.racks; ++other) At(other).queues[rack].clear();
    });
  }
  if (!At(rack).dead) return;
  Try("restart", rack, rack, [&] {
    At(rack).dead = false;
    ++At(rack).instance;
    SendToAll(rack, Word::kRestarted);
  });
}

void Search::TryTimers() {
  for (std::uint32_t rack = 0; rack < shape_.racks; ++rack) {
    for (std::uint32_t other = 0; other < shape_.racks; ++other) {
      if (!Runs(rack) || !At(other).dead) continue;
      Try("silent", rack, other,
          [&] { Do(rack, At(rack).protocol->On(RunEvent::kPeerSilent, RackIndex{other}, 1)); });
    }
  }
  const bool hangs = !moved_;
  for (std::uint32_t rack = 0; rack < shape_.racks && hangs; ++rack) {
    if (!Runs(rack) || At(rack).protocol->standing()) continue;
    Try("late", rack, rack, [&] { Do(rack, At(rack).protocol->On(RunEvent::kOpeningLate)); });
  }
}

std::string Search::Fingerprint() {
  std::string text;
  const auto add = [&](auto value) { text += static_cast<char>('0' + static_cast<int>(value)); };
  for (std::uint32_t rack = 0; rack < shape_.racks; ++rack) {
    const Daemon& daemon = At(rack);
    text += static_cast<char>(daemon.job);
    add(daemon.acknowledged + 2 * daemon.dead + 4 * static_cast<int>(daemon.instance));
    for (const Mask mask : {daemon.attached, daemon.losses, daemon.dialling, daemon.opened,
                            daemon.granted, daemon.dialled}) {
      add(mask);
    }
    for (const std::string& queue : daemon.queues) text += queue + ",";
    if (!daemon.protocol) continue;
    for (int region = 0; region < static_cast<int>(RunRegion::kCount); ++region) {
      add(daemon.protocol->state(static_cast<RunRegion>(region)));
    }
    for (std::uint32_t other = 0; other < shape_.racks; ++other) {
      for (int region = 0; region < static_cast<int>(PeerRegion::kCount); ++region) {
        add(daemon.protocol->peer(RackIndex{other}, static_cast<PeerRegion>(region)));
      }
    }
  }
  add(world_.troubles);
  add(world_.ready);
  add(world_.left);
  return text;
}

void Search::Explore() {
  if (!wrong_.empty() || !seen_.insert(here_).second) return;
  moved_ = false;
  for (std::uint32_t rack = 0; rack < shape_.racks; ++rack) {
    TryAlone(rack);
    for (std::uint32_t other = 0; other < shape_.racks; ++other) {
      TryMessages(rack, other);
      TryLanes(rack, other);
    }
    TryDeath(rack);
  }
  if (HasTimers()) TryTimers();
  if (!moved_) CheckEnd();
}

void Search::CheckEnd() {
  bool put_off = false;
  for (std::uint32_t rack = 0; rack < shape_.racks; ++rack) {
    put_off = put_off || (Runs(rack) && At(rack).protocol->put_off_due());
  }
  // A rack whose last message is dropped may end in order before it processes its queues. The
  // others then see only closed lanes, and need a timer after all.
  put_off = put_off && shape_.trouble == Trouble::kDropping;
  for (std::uint32_t rack = 0; rack < shape_.racks; ++rack) {
    if ((shape_.absent & Bit(rack)) != 0) continue;
    Require(!Runs(rack) || put_off, "rack " + std::to_string(rack) + " waits for ever");
    Require(world_.troubles > 0 || At(rack).job == Daemon::Job::kEnded,
            "fails though nothing went wrong");
  }
}

}  // namespace phub::server::rack_search
