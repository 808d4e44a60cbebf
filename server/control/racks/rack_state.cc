// Saved state of jobs that span racks. Each rack's daemon saves and loads the chunks whose home it
// is. Who saves asks every one of them; a load comes whole to one, which deals it out.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/control/jobs/local_rack.h"
#include "server/control/racks/rack_run.h"
#include "server/control/state.h"
#include "server/control/text.h"

namespace phub::server {
namespace {

// 0: the key has no such tensor.
std::uint32_t ElementBytesOf(const KeyState& key, v1::StateTensor tensor) {
  const std::size_t states = simd::StateCount(key.optimizer);
  const ElementType accumulation = numeric::AccumulationType(key.type);
  switch (tensor) {
    case v1::STATE_TENSOR_PARAMETERS: return numeric::ElementBytes(key.parameter_type);
    case v1::STATE_TENSOR_MASTERS: return key.has_masters() ? numeric::ElementBytes(key.type) : 0;
    case v1::STATE_TENSOR_OPTIMIZER_0: return states > 0 ? numeric::ElementBytes(accumulation) : 0;
    case v1::STATE_TENSOR_OPTIMIZER_1: return states > 1 ? numeric::ElementBytes(accumulation) : 0;
    default: return 0;
  }
}

}  // namespace

absl::StatusOr<std::optional<RackIndex>> Control::RackToAsk(const v1::RackChoice& choice) const {
  const ControlOptions& options = state_->options;
  if (options.racks.empty()) {
    return absl::FailedPreconditionError(fmt::format(
        "rack {} is asked for, and this daemon has no other racks: its `racks` is empty",
        choice.rack()));
  }
  if (choice.rack() >= options.racks_with_ranks()) {
    return absl::InvalidArgumentError(fmt::format("there is no rack {}: there are {}, from 0 on",
                                                  choice.rack(), options.racks_with_ranks()));
  }
  if (choice.rack() == options.rack_index) return std::nullopt;
  if (choice.passed_on()) {
    return absl::FailedPreconditionError(
        fmt::format("{} was asked for what rack {} knows; are `racks` and `rack_self` right?",
                    state_->DescribeRackBriefly(RackIndex{options.rack_index}), choice.rack()));
  }
  return RackIndex{choice.rack()};
}

absl::Status CheckSpansRacks(const Job& job, bool has_to) {
  if (!has_to || job.rack_run != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("a rack is named, and job {} does not span racks", job.name()));
}

bool IsNewestLoad(Job& job, std::uint64_t number) {
  if (number == 0) return true;
  if (number < job.newest_load) return false;
  job.newest_load = number;
  return true;
}

absl::StatusOr<Control::State::Seating> Control::State::FindLoader(
    const v1::LoadStateRequest& first) {
  if (first.incarnation() == 0) return FindRunning(first.session_id());
  Job* const job = FindIncarnation(Incarnation{first.incarnation()});
  if (job == nullptr || job->rack_run == nullptr || !first.session_id().empty()) {
    return absl::NotFoundError(
        fmt::format("{} has no job of the run {} that spans racks, or it has ended",
                    options.racks.empty() ? std::string("this daemon")
                                          : DescribeRackBriefly(RackIndex{options.rack_index}),
                    FormatIncarnation(Incarnation{first.incarnation()})));
  }
  if (absl::Status status = CheckLoader(*job, ""); !status.ok()) return status;
  return Seating{job, Rank::Max()};
}

absl::Status Control::State::CheckLoader(const Job& job, const std::string& session_id) {
  if (!session_id.empty()) return FindRunning(session_id).status();
  if (job.running()) return absl::OkStatus();
  return absl::AbortedError(job.fault.message().empty()
                                ? fmt::format("job {} has ended", job.name())
                                : job.fault.message());
}

void DealOut(std::uint32_t rack_count, RackIndex self, const std::vector<ChunkRef>& chunks,
             const v1::LoadedState& state, StateArrival& arrival) {
  arrival.dealt.resize(arrival.named.size());
  for (const ChunkRef& place : chunks) arrival.dealt[place.chunk->key->key.value].push_back(place);
  for (auto& key : arrival.dealt) {
    std::sort(key.begin(), key.end(), [](const ChunkRef& a, const ChunkRef& b) {
      return a.chunk->element_offset < b.chunk->element_offset;
    });
  }
  for (std::uint32_t rack = 0; rack < rack_count; ++rack) {
    if (rack == self.value) continue;
    v1::LoadStateRequest& first = arrival.for_racks[rack];
    first.set_iteration(state.iteration());
    *first.mutable_keys() = state.keys();
    *first.mutable_source() = state.source();
  }
}

// A piece that makes no sense is left as it is: TakePiece says what is wrong with it.
std::vector<v1::StatePiece> DealPiece(RackIndex self, StateArrival& arrival,
                                      const v1::StatePiece& piece) {
  std::vector<v1::StatePiece> own;
  const std::uint32_t key = piece.key_index();
  if (key >= arrival.dealt.size() || !arrival.named[key] || arrival.dealt[key].empty()) {
    return {piece};
  }
  const std::vector<ChunkRef>& chunks = arrival.dealt[key];
  const std::uint32_t element_bytes = ElementBytesOf(*chunks[0].chunk->key, piece.tensor());
  if (element_bytes == 0 || piece.elements().empty() ||
      piece.elements().size() % element_bytes != 0) {
    return {piece};
  }
  auto place = std::upper_bound(chunks.begin(), chunks.end(), piece.element_offset(),
                                [](std::uint64_t offset, const ChunkRef& each) {
                                  return offset < each.chunk->element_offset;
                                });
  if (place == chunks.begin()) return {piece};  // another daemon's of this rack
  --place;
  std::uint64_t offset = piece.element_offset();
  std::size_t from = 0;
  for (; from < piece.elements().size(); ++place) {
    const bool is_there = place != chunks.end() &&
                          offset - place->chunk->element_offset < place->chunk->element_count;
    if (!is_there) return {piece};
    const std::uint64_t room = place->chunk->element_offset + place->chunk->element_count - offset;
    const std::size_t bytes = std::min<std::size_t>(piece.elements().size() - from,
                                                    static_cast<std::size_t>(room) * element_bytes);
    v1::StatePiece& dealt = place->home == self
                                ? own.emplace_back()
                                : *arrival.for_racks[place->home.value].add_pieces();
    dealt.set_key_index(key);
    dealt.set_tensor(piece.tensor());
    dealt.set_element_offset(offset);
    dealt.set_elements(piece.elements().data() + from, bytes);
    from += bytes;
    offset += bytes / element_bytes;
  }
  return own;
}

std::map<std::uint32_t, v1::LoadStateRequest> Control::PartsForRacks(LoadId load) {
  Job* const job = state_->FindLoad(load);
  if (job == nullptr) return {};
  std::map<std::uint32_t, v1::LoadStateRequest> parts = std::exchange(job->arrival->for_racks, {});
  for (auto& [rack, part] : parts) part.set_incarnation(job->account.incarnation.value);
  return parts;
}

}  // namespace phub::server
