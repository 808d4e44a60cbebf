// How a worker joins, adds keys, opens lanes, hears of its job, and dies.
#include "tests/sim/sim_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tests/sim/sim_worker_key.h"

namespace phub::sim {

using client::Command;

SimWorker::SimWorker(SimNetwork& network, SimDaemon& daemon, SeededRandom& random,
                     const JobScript& job, std::uint32_t rank, NodeId node,
                     std::uint32_t& joined_count)
    : network_(network),
      daemon_(daemon),
      random_(random),
      job_(job),
      rank_(rank),
      node_(node),
      joined_count_(joined_count),
      transport_(std::make_unique<SimTransport>(network)),
      channel_(std::make_unique<SimControlChannel>(
          network, daemon.control(), fmt::format("10.0.0.{}", node),
          static_cast<DurationNs>(50'000 + random.Below(2'000'000)))) {}

SimWorker::~SimWorker() { *alive_ = false; }

void SimWorker::After(DurationNs delay, std::function<void()> what) {
  network_.Schedule(network_.clock().Now() + delay, [alive = alive_, what = std::move(what)] {
    if (*alive) what();
  });
}

bool SimWorker::done() const {
  return state_ == State::kLeft || state_ == State::kFailed || state_ == State::kDead;
}

std::uint64_t SimWorker::progress() const { return keys_.empty() ? 0 : keys_[0]->completed; }

// ---- Joining -----------------------------------------------------------------------------------

void SimWorker::Start() {
  v1::JoinRequest request;
  request.set_protocol_version_min(1);
  request.set_protocol_version_max(1);
  request.set_client_version("simulation");
  request.set_job(job_.name);
  request.set_rank(rank_);
  request.mutable_options()->set_world_size(job_.world_size);
  request.mutable_options()->set_chunk_bytes(job_.chunk_bytes);
  request.mutable_options()->set_staging_bytes_per_lane(job_.slots_per_lane * job_.chunk_bytes);
  request.mutable_options()->set_on_loss(job_.wait_policy ? v1::LOSS_POLICY_WAIT
                                                          : v1::LOSS_POLICY_FAIL);
  request.set_host(fmt::format("node{}", node_));
  request.set_pid(1000 + node_);
  channel_->Join(request, 0,
                 [this](const absl::StatusOr<v1::JoinResponse>& answer) { OnJoined(answer); });
}

void SimWorker::OnJoined(const absl::StatusOr<v1::JoinResponse>& answer) {
  if (!answer.ok()) return Refused("join", answer.status());
  const v1::JoinResponse& response = *answer;
  config_.incarnation = Incarnation{response.incarnation()};
  config_.membership_epoch = MembershipEpoch{response.membership_epoch()};
  config_.slots_per_lane = response.slots_per_lane();
  config_.lane_count = static_cast<std::uint32_t>(response.cores_size());
  std::vector<CoreIndex> cores;
  for (const v1::CoreEndpoint& core : response.cores()) cores.push_back(CoreIndex{core.core()});
  layout_ = std::make_unique<client::LaneLayout>(response.chunk_bytes(), cores);
  const std::array<transport::Transport*, 1> transports{transport_.get()};
  engine_ = std::make_unique<client::Engine>(config_, network_.clock(), transports, *this);
  lanes_.resize(cores.size());
  heartbeat_interval_ = response.liveness_timeout_ns() / 4;
  session_id_ = response.session_id();
  channel_->Attend(*this);
  ++joined_count_;
  Heartbeat();
  AddNextBatch();
}

// What this rank says of the key.
std::uint64_t SimWorker::ElementCount(const KeyScript& key) const {
  const bool differs = IsCulprit(Fate::kKeysDiffer) && &key == &job_.keys[0];
  return key.element_count + (differs ? 1u : 0u);
}

void SimWorker::AddNextBatch() {
  // A rank that joins after the failure makes a new incarnation and waits for peers that are gone.
  if (job_.fate != Fate::kCompletes && joined_count_ < job_.world_size) {
    return After(kMillisecond, [this] { AddNextBatch(); });
  }
  v1::AddKeysRequest request;
  request.set_session_id(session_id_);
  request.set_batch(next_batch_);
  for (const KeyScript& key : job_.keys) {
    if (key.batch != next_batch_) continue;
    v1::KeySpec& spec = *request.add_keys();
    spec.set_name(key.name);
    spec.set_element_count(ElementCount(key));
    spec.set_type(v1::ELEMENT_TYPE_F32);
    spec.set_operation(key.mean ? v1::OPERATION_MEAN : v1::OPERATION_SUM);
    spec.set_optimizer(static_cast<v1::OptimizerKind>(key.optimizer));
    const wire::HyperParameters& hyper = key.rounds[0].hyper_parameters;
    spec.mutable_hyper_parameters()->set_learning_rate(hyper.learning_rate);
    spec.mutable_hyper_parameters()->set_momentum(hyper.momentum);
    spec.mutable_hyper_parameters()->set_dampening(hyper.dampening);
    spec.mutable_hyper_parameters()->set_weight_decay(hyper.weight_decay);
  }
  if (request.keys_size() == 0) {  // all batches are in
    std::vector<std::uint32_t> all;
    for (std::uint32_t lane = 0; lane < lanes_.size(); ++lane) all.push_back(lane);
    return OpenLanes(all);
  }
  channel_->AddKeys(request, 0, [this](const absl::StatusOr<v1::AddKeysResponse>& answer) {
    OnKeysAdded(answer);
  });
}

void SimWorker::OnKeysAdded(const absl::StatusOr<v1::AddKeysResponse>& answer) {
  if (!answer.ok()) return Refused("add keys", answer.status());
  const v1::AddKeysResponse& response = *answer;
  std::vector<std::vector<std::uint32_t>> cores;
  std::vector<client::KeyPlacementView> views;
  for (const v1::KeyPlacement& placement : response.placements()) {
    cores.emplace_back(placement.chunk_cores().begin(), placement.chunk_cores().end());
  }
  for (int i = 0; i < response.placements_size(); ++i) {
    const KeyScript& key = job_.keys[response.placements(i).key_index()];
    views.push_back({key.name, KeyIndex{response.placements(i).key_index()},
                     ElementCount(key) * sizeof(float), cores[static_cast<std::size_t>(i)]});
  }
  auto layouts = layout_->AddKeys(views);
  if (!layouts.ok()) {
    mistake_ = fmt::format("layout: {}", layouts.status().ToString());
    return Fail(mistake_);
  }
  auto batch = std::make_unique<client::KeyBatch>();
  for (client::KeyLayout& layout : *layouts) {
    const std::uint32_t index = layout.key.value;
    keys_.push_back(std::make_unique<Key>(*this, index));
    batch->keys.push_back({std::move(layout), static_cast<std::int32_t>(random_.Below(3)),
                           job_.keys[index].rounds[0].hyper_parameters, keys_.back().get()});
  }
  Command command;
  command.kind = Command::Kind::kAddKeys;
  command.batch = batch.get();
  batches_.push_back(std::move(batch));
  Submit(command);
  ++next_batch_;
  AddNextBatch();
}

// ---- Lanes -------------------------------------------------------------------------------------

void SimWorker::OpenLanes(std::vector<std::uint32_t> lanes) {
  if (state_ != State::kJoining && state_ != State::kTraining) return;  // needs none any more
  v1::OpenLanesRequest request;
  request.set_session_id(session_id_);
  for (const std::uint32_t lane : lanes) request.add_cores(lane);
  channel_->OpenLanes(request, 0, [this](const absl::StatusOr<v1::OpenLanesResponse>& answer) {
    OnGranted(answer);
  });
}

void SimWorker::OnGranted(const absl::StatusOr<v1::OpenLanesResponse>& answer) {
  if (state_ != State::kJoining && state_ != State::kTraining) return;
  if (!answer.ok()) return Refused("open lanes", answer.status());
  const v1::OpenLanesResponse& response = *answer;
  for (const v1::LaneGrant& grant : response.grants()) {
    wire::LaneHello hello;
    hello.version_min = wire::kLaneVersionMin;
    hello.version_max = wire::kLaneVersion;
    hello.core = CoreIndex{grant.core()};
    hello.rank = Rank{rank_};
    hello.incarnation = config_.incarnation;
    hello.membership_epoch = config_.membership_epoch;
    std::memcpy(hello.nonce.data(), grant.nonce().data(),
                std::min(grant.nonce().size(), hello.nonce.size()));
    After(static_cast<DurationNs>(100'000 + random_.Below(1'000'000)),
          [this, lane = grant.core(), hello] { Dial(lane, hello); });
  }
}

// What the listener does in phubd: the gate admits, then takes the connection.
void SimWorker::Dial(std::uint32_t lane, const wire::LaneHello& hello) {
  if (state_ != State::kJoining && state_ != State::kTraining) return;
  const wire::LaneRefusal refusal = daemon_.control().AdmitLane(hello);
  if (refusal != wire::LaneRefusal::kNone) {
    if (refusal == wire::LaneRefusal::kBusy) {
      return After(kMillisecond, [this, lane] { OpenLanes({lane}); });
    }
    if (refusal != wire::LaneRefusal::kJob) {
      mistake_ = fmt::format("lane {} refused: {}", lane, wire::ToString(refusal));
    }
    return;
  }
  auto [mine, theirs] = network_.Connect(node_, daemon_.node(lane));
  daemon_.control().AttachLane(hello, std::move(theirs), 0, "sim", fmt::format("node{}", node_));
  Command command;
  command.kind = Command::Kind::kAttachLane;
  command.lane = lane;
  command.connection = mine.get();
  lanes_[lane].connection = std::move(mine);
  lanes_[lane].attached = true;
  Submit(command);
  const bool all = std::all_of(lanes_.begin(), lanes_.end(),
                               [](const Lane& each) { return each.connection != nullptr; });
  if (all && state_ == State::kJoining) state_ = State::kTraining;
}

void SimWorker::OnLaneClosed(const client::LaneClosed& closed) {
  if (closed.fault != client::LaneFault::kNone) {
    mistake_ = fmt::format("lane {}: {}", closed.lane, client::ToString(closed.fault));
  }
  if (closed.error == transport::TransportError::kProtocol) {
    mistake_ = fmt::format("lane {}: {}", closed.lane, transport::ToString(closed.protocol_error));
  }
  lanes_[closed.lane].connection = nullptr;
  lanes_[closed.lane].attached = false;
  const bool comes_back =
      job_.wait_policy && (state_ == State::kJoining || state_ == State::kTraining);
  if (comes_back) {
    After(static_cast<DurationNs>(random_.Below(5'000'000)),
          [this, lane = closed.lane] { OpenLanes({lane}); });
  }
}

void SimWorker::BreakLane(std::uint32_t lane) {
  if (lane >= lanes_.size() || !lanes_[lane].attached) return;
  network_.Reset(static_cast<SimNetwork::Connection&>(*lanes_[lane].connection));
}

void SimWorker::BreakSomeLane() {
  if (!job_.wait_policy || lanes_.empty() || state_ != State::kTraining) return;
  BreakLane(static_cast<std::uint32_t>(random_.Below(lanes_.size())));
}

// ---- Control's events --------------------------------------------------------------------------

void SimWorker::Heartbeat() {
  if (done()) return;
  v1::Heartbeat heartbeat;
  heartbeat.set_session_id(session_id_);
  heartbeat.set_sequence(++heartbeat_sequence_);
  channel_->SendHeartbeat(heartbeat);
  After(heartbeat_interval_, [this] { Heartbeat(); });
}

void SimWorker::OnEvent(const v1::SessionEvent& event) {
  if (event.has_job_failed()) Fail(event.job_failed().fault().message());
}

void SimWorker::Fail(const std::string& verdict) {
  if (state_ == State::kStopping || done()) return;
  verdict_ = verdict;
  verdict_at_ = network_.clock().Now();
  if (engine_ == nullptr) {
    state_ = State::kFailed;
    return;
  }
  state_ = State::kStopping;
  Command stop;
  stop.kind = Command::Kind::kStop;
  Submit(stop);
}

void SimWorker::Refused(const char* what, const absl::Status& status) {
  if (job_.fate == Fate::kCompletes) {
    mistake_ = fmt::format("{}: {}", what, status.ToString());
  }
  Fail(std::string(status.message()));
}

void SimWorker::OnStopped() { state_ = state_ == State::kLeaving ? State::kLeft : State::kFailed; }

void SimWorker::Crash(bool silent) {
  if (done()) return;
  state_ = State::kDead;
  *alive_ = false;
  channel_->Cut(silent);
  network_.Crash(node_, silent ? 3600 * kSecond : kMillisecond);
  engine_ = nullptr;
  transport_ = nullptr;
  lanes_.clear();
}

}  // namespace phub::sim
