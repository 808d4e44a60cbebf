// How a worker joins every daemon of its rack, adds keys, and finds out where to resume.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "client/checkpoint/version_pages.h"
#include "client/session/fault_text.h"
#include "common/optimizer/message_fields.h"
#include "tests/sim/sim_worker_calls.h"
#include "tests/sim/sim_worker_key.h"

namespace phub::sim {
namespace {

v1::HyperParameters ToProto(const wire::HyperParameters& hyper) {
  v1::HyperParameters values;
  optimizer::ToMessage(hyper, values);
  return values;
}

bool SamePlacements(const v1::AddKeysResponse& a, const v1::AddKeysResponse& b) {
  return std::equal(a.placements().begin(), a.placements().end(), b.placements().begin(),
                    b.placements().end(), [](const v1::KeyPlacement& x, const v1::KeyPlacement& y) {
                      return x.key_index() == y.key_index() &&
                             std::equal(x.chunk_bins().begin(), x.chunk_bins().end(),
                                        y.chunk_bins().begin(), y.chunk_bins().end());
                    });
}

}  // namespace

void SimWorker::Start() { AskRack(); }

// Each daemon knows only its own core loops.
void SimWorker::AskRack() {
  CallAll<v1::Rack>(
      "get rack",
      [this](Link& link, auto done) {
        link.channel->Call<rpc::GetRack>({}, CallTimeout(), std::move(done));
      },
      [](Link& link, const v1::Rack& rack) { link.rack = rack; }, [this] { Reserve(0); });
}

v1::JoinRequest SimWorker::JoinRequestTo(const Link& link) const {
  v1::JoinRequest request;
  request.set_protocol_version_min(1);
  request.set_protocol_version_max(1);
  request.set_client_version("simulation");
  request.set_job(script_.name);
  request.set_rank(rank_);
  v1::JobOptions& options = *request.mutable_options();
  options.set_world_size(script_.world_size);
  options.set_chunk_bytes(script_.chunk_bytes);
  options.set_staging_bytes_per_lane(script_.slots_per_lane * script_.chunk_bytes);
  options.set_on_loss(script_.wait_policy ? v1::LOSS_POLICY_WAIT : v1::LOSS_POLICY_FAIL);
  options.set_wait_timeout_ns(script_.wait_policy ? script_.wait_timeout : 0);
  options.set_restart(script_.restart);
  if (script_.apply_iteration) options.set_apply(v1::APPLY_ITERATION);
  options.set_clip_norm(script_.clip_norm);
  options.set_skip_nonfinite(script_.skip_nonfinite);
  options.set_plan(script_.plan);
  if (script_.sum_block != 0) options.set_sum(v1::SUM_FIXED);
  options.set_sum_block(script_.sum_block);
  request.set_host(fmt::format("node{}", node_));
  request.set_pid(1000 + node_);
  request.set_dumps(random_.Chance(7, 8));
  request.set_keeps_lanes(random_.Chance(7, 8));
  request.set_configuration(links_.front()->rack.configuration());
  request.set_daemon(link.daemon.position());
  if (link.daemon.position() > 0) request.set_incarnation(config_.incarnation.value);
  for (const auto& each : links_) {
    const auto self = static_cast<int>(each->rack.self());
    request.add_daemon_cores(each->rack.daemons(self).core_count());
  }
  return request;
}

void SimWorker::Reserve(std::size_t position) {
  if (position == links_.size()) return Commit(0);
  Link& link = *links_[position];
  link.channel->Call<rpc::Join>(
      JoinRequestTo(link), CallTimeout(),
      [this, &link, position](const absl::StatusOr<v1::JoinResponse>& answer) {
        if (!answer.ok()) {
          const bool over = position > 0 && absl::IsAborted(answer.status());
          return GiveBack(link, answer.status(), over);
        }
        link.joined = *answer;
        if (position == 0) config_.incarnation = Incarnation{answer->incarnation()};
        if (answer->incarnation() != config_.incarnation.value) {
          mistake_ = fmt::format("{} joins incarnation {:x}, not {:x}", link.daemon.endpoint(),
                                 answer->incarnation(), config_.incarnation.value);
        }
        Reserve(position + 1);
      });
}

void SimWorker::Commit(std::size_t position) {
  if (position == links_.size()) return Begin();
  Link& link = *links_[position];
  liveness_timeout_ = links_.front()->joined.liveness_timeout_ns();
  v1::CommitRequest request;
  request.set_session_id(link.joined.session_id());
  link.channel->Call<rpc::Commit>(
      request, CallTimeout(),
      [this, &link, position](const absl::StatusOr<v1::CommitResponse>& answer) {
        if (done()) return;
        if (!answer.ok()) {
          return GiveBack(link, answer.status(), /*run_is_over=*/false);
        }
        Attend(link);  // its place is confirmed, so the daemon must see that it is alive
        if (position == 0) Heartbeat();
        Commit(position + 1);
      });
}

// A daemon refused. The worker releases its reservations at the others, and tries again if its
// predecessor may not be known to be dead everywhere.
void SimWorker::GiveBack(const Link& refused, const absl::Status& why, bool run_is_over) {
  for (const auto& link : links_) {
    if (link->joined.session_id().empty()) break;
    v1::LeaveRequest request;
    request.set_session_id(link->joined.session_id());
    // If the place was already confirmed, the refusal ends the job.
    const client::Endpoint endpoint = EndpointOf(refused);
    request.set_verdict(std::string(client::NamedCallStatus("join", endpoint, why).message()));
    request.set_run_is_over(run_is_over);
    link->channel->Call<rpc::Leave>(request, LeaveTimeout(), [](const auto&) {});
    link->joined.Clear();
    link->attended = false;
  }
  if (script_.restart && absl::IsAlreadyExists(why)) {
    return After(static_cast<DurationNs>(random_.Below(400)) * kMillisecond,
                 [this] { Reserve(0); });
  }
  Refused("join", refused, why);
}

// The rank has joined.
void SimWorker::Begin() {
  const v1::JoinResponse& anchor = links_.front()->joined;
  config_.membership_epoch = MembershipEpoch{anchor.membership_epoch()};
  config_.slots_per_lane = anchor.slots_per_lane();
  // Clients of older versions have no such limit.
  config_.yielding_slots = random_.Below(4) == 0 ? 0 : YieldingSlotsMax(config_.slots_per_lane);
  config_.restart = script_.restart;
  config_.apply_iteration = script_.apply_iteration;
  config_.clip_norm = script_.clip_norm;
  config_.skip_nonfinite = script_.skip_nonfinite;
  config_.liveness_timeout = liveness_timeout_;
  std::uint32_t lane_count = 0;
  for (const auto& link : links_) {
    link->first_lane = lane_count;
    lane_count += static_cast<std::uint32_t>(link->joined.cores_size());
  }
  config_.lane_count = lane_count;
  layout_ = std::make_unique<client::LaneLayout>(anchor.chunk_bytes(), lane_count);
  std::vector<transport::Transport*> transports;
  for (const auto& transport : transports_) transports.push_back(transport.get());
  engine_ = std::make_unique<client::Engine>(config_, network_.clock(), transports, *this);
  lanes_.resize(lane_count);
  ++job_.joined_count;
  for (const auto& link : links_) {
    std::vector<std::uint32_t> lanes;
    for (int i = 0; i < link->joined.cores_size(); ++i) {
      lanes.push_back(link->first_lane + static_cast<std::uint32_t>(i));
    }
    OpenLanes(*link, lanes);
  }
}

// ---- Where to go on ----------------------------------------------------------------------------

void SimWorker::AskWhereToResume() {
  const bool resumed = std::any_of(links_.begin(), links_.end(),
                                   [](const auto& link) { return link->joined.resumed(); });
  if (!resumed) return AddNextBatch();
  for (const auto& link : links_) link->versions.Clear();
  CallAll<v1::GetVersionsResponse>(
      "get versions", [this](Link& link, auto done) { AskVersions(link, std::move(done)); },
      [](Link&, const v1::GetVersionsResponse&) {}, [this] { PlanResume(); });
}

// All pages of one daemon.
void SimWorker::AskVersions(Link& link,
                            client::ControlChannel::Done<v1::GetVersionsResponse> done) {
  v1::GetVersionsRequest request;
  request.set_session_id(link.joined.session_id());
  request.set_first_key(link.versions.next_key());
  request.set_page_size(2);
  link.channel->Call<rpc::GetVersions>(
      request, CallTimeout(),
      [this, &link, done = std::move(done)](absl::StatusOr<v1::GetVersionsResponse> page) {
        if (page.ok()) {
          const absl::Status added = client::AddPage(*page, link.versions);
          if (!added.ok()) page = added;
        }
        const bool more = page.ok() && page->next_key() != 0;
        more ? AskVersions(link, done) : done(std::move(page));
      });
}

void SimWorker::PlanResume() {
  std::vector<client::DaemonVersions> daemons;
  for (const auto& link : links_) {
    daemons.push_back({link->daemon.endpoint(), link->joined.resumed(), link->versions});
  }
  auto plan = client::MakeResumePlan(daemons);
  if (!plan.ok()) {
    mistake_ =
        fmt::format("{} rank {} cannot resume: {}", script_.name, rank_, plan.status().message());
    return Fail(phub::Status(phub::StatusCode::kUnknown, mistake_), nullptr);
  }
  plan_ = *std::move(plan);
  for (const client::DaemonVersions& daemon : daemons) {
    for (const v1::KeyVersions& key : daemon.versions.keys()) {
      const std::uint64_t version = plan_.keys[key.key_index()].version.value;
      if (version > 0 && key.chunk_count() > 0 && key.applied_max() > version) {
        ++keys_resumed_back_;
      }
    }
  }
  AddNextBatch();
}

// ---- Keys --------------------------------------------------------------------------------------

// This rank's description of the key.
std::uint64_t SimWorker::ElementCount(const KeyScript& key) const {
  const bool differs = IsCulprit(Fate::kKeysDiffer) && &key == &script_.keys[0];
  return key.element_count + (differs ? 1u : 0u);
}

namespace {

// Keys of jobs that span racks have all classes.
std::uint8_t ClassLevelOf(const JobScript& script, std::size_t key) {
  return static_cast<std::uint8_t>(script.racks > 1 ? key % kPriorityLevels : 0);
}

}  // namespace

v1::AddKeysRequest SimWorker::NextBatch() const {
  v1::AddKeysRequest request;
  request.set_batch(next_batch_);
  request.set_removals(removals_done_);
  for (std::size_t i = 0; i < script_.keys.size(); ++i) {
    const KeyScript& key = script_.keys[i];
    if (key.batch != next_batch_) continue;
    v1::KeySpec& spec = *request.add_keys();
    spec.set_name(key.name);
    spec.set_element_count(ElementCount(key) * key.units());
    spec.set_type(key.pooled ? v1::ELEMENT_TYPE_U8 : v1::ELEMENT_TYPE_F32);
    spec.set_pooled(key.pooled);
    spec.set_movement(static_cast<v1::Movement>(key.movement));
    spec.set_root(key.root);
    spec.set_collective(key.collective);
    spec.set_priority_class(
        static_cast<v1::PriorityClass>(v1::PRIORITY_CLASS_DATA + ClassLevelOf(script_, i)));
    spec.set_encoding(static_cast<v1::Encoding>(key.encoding.kind));
    spec.set_kept_millionths(key.encoding.kept_millionths);
    spec.set_operation(key.mean ? v1::OPERATION_MEAN : v1::OPERATION_SUM);
    spec.set_optimizer(static_cast<v1::OptimizerKind>(key.optimizer));
    *spec.mutable_hyper_parameters() = ToProto(key.rounds[0].hyper_parameters);
    if (i < plan_.keys.size()) spec.set_first_iteration(plan_.keys[i].first_iteration);
  }
  return request;
}

void SimWorker::AddNextBatch() {
  // A rank that joins after the failure starts a new incarnation and waits for peers that are gone.
  if (script_.fate != Fate::kCompletes && job_.joined_count < script_.world_size) {
    return After(kMillisecond, [this] {
      if (state_ == State::kJoining) AddNextBatch();
    });
  }
  const v1::AddKeysRequest request = NextBatch();
  const bool is_last = request.keys_size() == 0;
  if (!groups_added_ && (is_last || next_batch_ == script_.groups_after)) return AddNextGroup();
  if (is_last) return StartTraining();
  const std::uint64_t shared_bytes = PlanMemory(request);
  CallAll<v1::AddKeysResponse>(
      "add keys",
      [&](Link& link, auto done) {
        v1::AddKeysRequest mine = request;
        if (&link == SharingLink()) mine.set_shared_bytes(shared_bytes);
        mine.set_session_id(link.joined.session_id());
        link.channel->Call<rpc::AddKeys>(mine, CallTimeout(), std::move(done));
      },
      [](Link& link, const v1::AddKeysResponse& placed) { link.placed = placed; },
      [this] { OnKeysAdded(); });
}

void SimWorker::OnKeysAdded() {
  const v1::AddKeysResponse& response = links_.front()->placed;
  for (const auto& link : links_) {
    if (SamePlacements(response, link->placed)) continue;
    mistake_ = fmt::format("{} and {} place keys differently", links_.front()->daemon.endpoint(),
                           link->daemon.endpoint());
  }
  for (const auto& link : links_) {
    if (link->shared && !FetchMemory(*link, next_batch_)) return;
  }
  std::vector<client::KeyPlacementView> views;
  for (const v1::KeyPlacement& placement : response.placements()) {
    const KeyScript& key = script_.keys[placement.key_index()];
    views.push_back({.name = key.name,
                     .key = KeyIndex{placement.key_index()},
                     .element_count = ElementCount(key) * key.units(),
                     .element_bytes = key.pooled ? 1u : 4u,
                     .parts = {key.movement, script_.world_size, Rank{key.root}},
                     .chunk_bins = {placement.chunk_bins().data(),
                                    static_cast<std::size_t>(placement.chunk_bins_size())},
                     .first_chunks = {placement.first_chunks().data(),
                                      static_cast<std::size_t>(placement.first_chunks_size())}});
  }
  auto layouts = layout_->AddKeys(views);
  if (!layouts.ok()) {
    mistake_ = fmt::format("layout: {}", layouts.status().ToString());
    return Fail(phub::Status(phub::StatusCode::kUnknown, mistake_), nullptr);
  }
  auto batch = std::make_unique<client::KeyBatch>();
  for (client::KeyLayout& layout : *layouts) {
    const std::uint32_t index = layout.key.value;
    keys_.push_back(std::make_unique<Key>(*this, index));
    const std::size_t in_batch = batch->keys.size();
    TakeMemory(*keys_.back(), memory_plans_[in_batch],
               (SharingLink() == nullptr ? response : SharingLink()->placed)
                   .placements(static_cast<int>(in_batch)));
    batch->keys.push_back({.layout = std::move(layout),
                           .encoding = script_.keys[index].encoding,
                           .rank = Rank{rank_},
                           .priority = static_cast<std::int32_t>(random_.Below(3)),
                           .level = ClassLevelOf(script_, index),
                           .collective = script_.keys[index].collective,
                           .pooled = script_.keys[index].pooled,
                           .hyper_parameters = script_.keys[index].rounds[0].hyper_parameters,
                           .listener = keys_.back().get()});
  }
  client::Command command;
  command.kind = client::Command::Kind::kAddKeys;
  command.batch = batch.get();
  batches_.push_back(std::move(batch));
  Submit(command);
  ++next_batch_;
  AddNextBatch();
}

void SimWorker::StartTraining() {
  removing_ = false;
  if (state_ == State::kTraining) return;  // a removed batch was added again
  state_ = State::kTraining;
  for (const auto& key : keys_) {
    if (key->index < plan_.keys.size() && plan_.keys[key->index].version.value > 0) {
      Resume(*key, plan_.keys[key->index]);
    }
  }
}

}  // namespace phub::sim
