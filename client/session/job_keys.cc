// Adding keys: checks the specs, has the daemons place the keys, and gives the engine the layout.
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "client/session/job_impl.h"
#include "client/session/key_checks.h"
#include "client/session/key_memory.h"
#include "client/session/key_support.h"
#include "client/session/optimizers.h"

namespace phub::client {
namespace {

constexpr std::uint64_t kKeyOverheadBytes = 4;
// The size of a key without its name is far below this.
constexpr std::uint64_t kKeyBytesMax = 192;
constexpr std::uint64_t kBatchBytes = 1 << 20;

// How many keys to send in each call. A batch that fits into one message is one call, as it always
// was: the ranks of a job must add the same batches, and some may use an older version.
std::vector<std::size_t> BatchesOf(std::span<const KeyDefinition> definitions) {
  std::uint64_t bytes = 0;
  for (const KeyDefinition& definition : definitions)
    bytes += ToProto(definition).ByteSizeLong() + kKeyOverheadBytes;
  if (bytes <= kWholeBatchBytesMax) return {definitions.size()};
  std::vector<std::size_t> counts;
  std::uint64_t left = 0;  // in the last batch
  for (const KeyDefinition& definition : definitions) {
    // The same on every rank, whatever its memory and iteration.
    const std::uint64_t cost = definition.name.size() + kKeyBytesMax;
    if (cost > left) {
      counts.push_back(0);
      left = kBatchBytes;
    }
    left -= cost;
    ++counts.back();
  }
  return counts;
}

// The last movement that a daemon has.
std::uint32_t MovementMaxOf(const v1::JoinResponse& joined) {
  return std::max<std::uint32_t>(joined.movement_max(), joined.movements() ? kFirstMovementMax : 0);
}

// The first thing of a key that a daemon does not support; empty: it supports all of them.
std::string Unsupported(const KeyDefinition& key, const v1::JoinResponse& joined) {
  if (key.collective && !joined.collective_keys()) return "collective keys";
  if (key.pooled && !joined.pooled_keys()) return "pooled keys";
  const std::uint32_t operations =
      std::max<std::uint32_t>(joined.operation_max(), v1::OPERATION_PRODUCT);
  if (static_cast<std::uint32_t>(OperationOf(key.operation)) > operations)
    return fmt::format("operation {}", ToString(ReductionOf(key.operation)));
  if (static_cast<std::uint32_t>(key.encoding.kind) > joined.encoding_max())
    return fmt::format("compression {}", ToString(key.encoding.kind));
  const KeyMovement movement = key.parts.movement;
  if (static_cast<std::uint32_t>(movement) > MovementMaxOf(joined))
    return fmt::format("movement {}", ToString(movement));
  return {};
}

}  // namespace

Status CheckSupported(KeyDefinition& key, const DaemonLinks& links) {
  for (const std::unique_ptr<DaemonLink>& link : links) {
    const std::string what = Unsupported(key, link->joined);
    const std::string lacks =
        fmt::format("which daemon {} of version {} does not support: upgrade the daemon",
                    link->endpoint.ToString(), link->joined.daemon_version());
    if (!what.empty())
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("key {} needs {}, {}", key.name, what, lacks));
    if (key.pooled && !link->joined.pooled_moves())
      key.why_no_broadcasts = "broadcasts of pools need rounds that move, " + lacks;
  }
  return Status();
}

std::vector<KeyPlacementView> ViewsOf(std::span<const KeyDefinition> definitions,
                                      const v1::AddKeysResponse& response) {
  const auto span_of = [](const auto& numbers) {
    return std::span<const std::uint32_t>(numbers.data(), static_cast<std::size_t>(numbers.size()));
  };
  std::vector<KeyPlacementView> views;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    const v1::KeyPlacement& placement = response.placements(static_cast<int>(i));
    views.push_back({.name = definitions[i].name,
                     .key = KeyIndex{placement.key_index()},
                     .element_count = definitions[i].elements_held(),
                     .element_bytes = numeric::ElementBytes(definitions[i].type),
                     .parts = definitions[i].parts,
                     .chunk_bins = span_of(placement.chunk_bins()),
                     .first_chunks = span_of(placement.first_chunks()),
                     .members = definitions[i].members});
  }
  return views;
}

Result<std::vector<KeyDefinition>> JobImpl::CheckSpecs(std::span<const KeySpec> specs) const {
  // The limit of chunk numbers on all lanes. The daemons check their memory themselves.
  const std::uint32_t chunk_bytes = calls_.links().front()->joined.chunk_bytes();
  const std::uint64_t bytes_max =
      std::uint64_t{kChunksPerShardMax} * layout_->lane_count() * chunk_bytes;
  if (specs.size() > kKeysPerJobMax - layout_->key_count())
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("job {} may have at most {} keys", name(), kKeysPerJobMax));
  // A key's first iteration is counted in pushes of this rank, not in replies: the number is then
  // the same on every rank.
  std::optional<std::uint64_t> pushed;
  const std::vector<std::shared_ptr<KeyImpl>> present = Keys();
  std::set<std::string_view> names;
  for (const std::shared_ptr<KeyImpl>& key : present) {
    names.insert(key->definition.name);
    if (key->definition.collective) continue;
    const std::uint64_t iteration = key->pushed_iteration();
    pushed = std::min(pushed.value_or(iteration), iteration);
  }
  std::vector<KeyDefinition> definitions;
  definitions.reserve(specs.size());
  for (const KeySpec& spec : specs) {
    if (!names.insert(spec.name).second)
      return Status(StatusCode::kAlreadyExists,
                    fmt::format("job {} already has a key {}", name(), spec.name));
    Result<KeyDefinition> definition = CheckKey(spec, bytes_max,
                                                {.rank = Rank{rank()},
                                                 .world_size = world_size(),
                                                 .restart = settings_.options.restart,
                                                 .spans_racks = !settings_.options.plan.empty(),
                                                 .sums_fixed = settings_.options.sum == Sum::kFixed,
                                                 .chunk_bytes = chunk_bytes});
    if (!definition.ok()) return definition.status();
    if (Status status = CheckSupported(*definition, calls_.links()); !status.ok()) return status;
    if (!definition->collective) definition->first_iteration = pushed.value_or(resume_.iteration);
    definitions.push_back(*std::move(definition));
  }
  return definitions;
}

// A restarted process must find all keys at the same iteration or one further, so new keys start at
// the iteration of the others. With apply=kIteration all ranks must agree on an iteration's keys.
Status JobImpl::CheckBoundary() const {
  const char* const why = settings_.options.restart ? "has restart=true" : "has apply=kIteration";
  std::vector<std::shared_ptr<KeyImpl>> keys = Keys();
  std::erase_if(keys, [](const auto& key) { return key->definition.collective; });
  for (const std::shared_ptr<KeyImpl>& key : keys) {
    if (!key->Idle())
      return Status(StatusCode::kFailedPrecondition,
                    fmt::format("job {} {}, so keys can be added only between iterations; key "
                                "{} has a round in flight",
                                name(), why, key->definition.name));
    const std::uint64_t first = keys.front()->job_iteration();
    if (key->job_iteration() != first)
      return Status(
          StatusCode::kFailedPrecondition,
          fmt::format("job {} {}, so keys can be added only between iterations; key {} is at "
                      "iteration {} and key {} at {}",
                      name(), why, keys.front()->definition.name, first, key->definition.name,
                      key->job_iteration()));
  }
  return Status();
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobImpl::AddKeys(std::span<const KeySpec> specs) {
  const std::lock_guard calls(calls_mutex_);
  if (Status verdict = status(); !verdict.ok()) return verdict;
  if (specs.empty()) return std::vector<std::shared_ptr<KeyImpl>>();
  const bool are_collective =
      std::ranges::all_of(specs, [](const KeySpec& spec) { return spec.options.collective; });
  if (!are_collective && (settings_.options.restart || applies_iterations())) {
    if (Status status = CheckBoundary(); !status.ok()) return status;
  }
  Result<std::vector<KeyDefinition>> definitions = CheckSpecs(specs);
  if (!definitions.ok()) return definitions.status();
  std::vector<std::shared_ptr<KeyImpl>> keys;
  for (const std::size_t count : BatchesOf(*definitions)) {
    const auto first = definitions->begin() + static_cast<std::ptrdiff_t>(keys.size());
    auto added = AddBatch({std::make_move_iterator(first),
                           std::make_move_iterator(first + static_cast<std::ptrdiff_t>(count))});
    if (!added.ok()) {
      // The job has some of the keys, but nobody can use them.
      if (!keys.empty()) Fail(added.status());
      return added.status();
    }
    keys.insert(keys.end(), added->begin(), added->end());
  }
  if (Status status = ResumeKeys(keys); !status.ok()) return status;
  return keys;
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobImpl::AddBatch(
    std::vector<KeyDefinition> definitions) {
  const std::uint64_t shared_bytes =
      rack_batches_.SharingDaemon() == nullptr
          ? 0
          : PlanOwnMemory(definitions, rack_batches_.ReadsDaemonsParameters());
  v1::AddKeysRequest request;
  for (const KeyDefinition& definition : definitions) *request.add_keys() = ToProto(definition);
  // For existing keys, a process that takes over a rank sends their original first iteration.
  for (int i = 0; i < request.keys_size(); ++i)
    if (const KeyResume* resume =
            ResumeOf(KeyIndex{layout_->key_count() + static_cast<std::uint32_t>(i)}))
      request.mutable_keys(i)->set_first_iteration(resume->first_iteration);
  bool is_split = false;
  Result<AddedBatch> added = rack_batches_.Add(std::move(request), shared_bytes, is_split);
  if (is_split) Fail(added.status());
  if (!added.ok()) return added.status();
  auto keys = Enter(std::move(definitions), *added);
  // The daemons have the keys but this rank does not, so the job must end.
  if (!keys.ok()) Fail(keys.status());
  return keys;
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobImpl::Enter(std::vector<KeyDefinition> definitions,
                                                             const AddedBatch& added) {
  absl::StatusOr<std::vector<KeyLayout>> layouts =
      layout_->AddKeys(ViewsOf(definitions, added.response));
  if (!layouts.ok())
    return Status(StatusCode::kInternal,
                  fmt::format("daemon {}: {}", calls_.links().front()->endpoint.ToString(),
                              std::string(layouts.status().message())));
  groups_.AwaitNumbers(*layouts);
  auto batch = std::make_unique<KeyBatch>();
  auto keys = MakeKeys(std::move(definitions), *std::move(layouts), added, *batch);
  if (!keys.ok()) return keys.status();
  {
    const std::lock_guard lock(mutex_);
    keys_.insert(keys_.end(), keys->begin(), keys->end());
  }
  batches_.push_back(std::move(batch));
  Submit({.kind = Command::Kind::kAddKeys, .batch = batches_.back().get()});
  return keys;
}

Result<std::vector<std::shared_ptr<KeyImpl>>> JobImpl::MakeKeys(
    std::vector<KeyDefinition> definitions, std::vector<KeyLayout> layouts, const AddedBatch& added,
    KeyBatch& batch) {
  std::vector<std::shared_ptr<KeyImpl>> keys;
  for (std::size_t i = 0; i < definitions.size(); ++i) {
    KeyDefinition& definition = definitions[i];
    const KeyIndex index = layouts[i].key;
    const KeyResume* const resume = ResumeOf(index);
    if (resume != nullptr) definition.first_iteration = resume->first_iteration;
    Status status = TakeMemory(definition, added.memory,
                               added.response.placements(static_cast<int>(i)).shared_offset());
    if (!status.ok()) return status;
    using Use = transport::ClientLanes::MemoryUse;
    if (definition.encoded != nullptr)
      ways_->Register(definition.encoded, definition.encoded_bytes(), Use::kSend);
    else if (definition.gradient_count() > 0)
      ways_->Register(definition.gradients.data, definition.gradients_bytes(), Use::kSend);
    if (!definition.parameters_shared && definition.parameter_count() > 0)
      ways_->Register(definition.parameters.data, definition.parameters_bytes(), Use::kReceive);
    batch.keys.push_back({.layout = std::move(layouts[i]),
                          .type = definition.type,
                          .gradient_type = definition.gradient_type,
                          .parameter_type = definition.parameter_type,
                          .encoding = definition.encoding,
                          .rank = Rank{rank()},
                          .first_iteration = definition.first_iteration,
                          .priority = definition.priority,
                          .level = LevelOf(definition.priority_class),
                          .collective = definition.collective,
                          .pooled = definition.pooled,
                          .hyper_parameters = definition.hyper_parameters});
    keys.push_back(std::make_shared<KeyImpl>(shared_from_this(), index, std::move(definition)));
    batch.keys.back().listener = keys.back().get();
    if (timeline_ != nullptr)
      keys.back()->trace.Begin(*timeline_,
                               timeline_->AddKey(name(), rank(), keys.back()->definition.name));
  }
  return keys;
}

Status JobImpl::ResumeKeys(std::span<const std::shared_ptr<KeyImpl>> keys) {
  if (!resumed()) return Status();
  std::vector<std::pair<KeyImpl*, std::uint64_t>> tickets;
  Status status;
  for (const std::shared_ptr<KeyImpl>& key : keys) {
    const KeyResume* const resume = ResumeOf(key->index);
    if (resume == nullptr || resume->version == Iteration{}) continue;
    const Result<std::uint64_t> ticket =
        key->Resume({.version = resume->version,
                     .reductions = resume->reductions,
                     .hyper_version = resume->hyper_version,
                     .hyper_parameters = resume->hyper_version == HyperVersion{}
                                             ? key->definition.hyper_parameters
                                             : FromProto(resume->hyper_parameters)});
    if (ticket.ok()) tickets.emplace_back(key.get(), *ticket);
    if (!ticket.ok() && status.ok()) status = ticket.status();
  }
  for (const auto& [key, ticket] : tickets)
    if (Status complete = key->Wait(ticket, std::nullopt); !complete.ok() && status.ok())
      status = complete;
  return status;
}

}  // namespace phub::client
