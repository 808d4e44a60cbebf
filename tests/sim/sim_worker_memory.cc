// The memory that a worker shares with daemons on its host: lanes and its keys' memory. Both ends
// map it separately, as two processes would. Direct calls replace phubd's listener.
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/check.h"
#include "tests/sim/sim_worker.h"
#include "tests/sim/sim_worker_key.h"

namespace phub::sim {
namespace {

constexpr std::uint64_t kPieceAlignment = 64;

std::uint64_t AddPiece(std::uint64_t bytes, std::uint64_t& total) {
  const std::uint64_t offset = total;
  total += (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  return offset;
}

std::shared_ptr<const SharedMemory> MapAgain(const std::shared_ptr<const SharedMemory>& memory,
                                             SharedMemory::Access access) {
  if (memory == nullptr) return nullptr;
  auto mapped = SharedMemory::Map(Descriptor(dup(memory->descriptor())), memory->bytes(), access);
  PHUB_CHECK(mapped.ok(), "error={}", mapped.status().ToString());
  return std::make_shared<const SharedMemory>(*std::move(mapped));
}

}  // namespace

// Draws whether the worker is on no daemon's host, on one daemon's host, or on the host of all.
void SimWorker::DrawSharing() {
  const std::uint64_t kind = random_.Below(3);
  const std::uint64_t which = random_.Below(links_.size());
  if (kind == 0 || IsCulprit(Fate::kLaneBreaks)) return;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Link& link = *links_[i];
    link.shared = link.daemon.shares_memory() && (kind == 1 || i == which);
    if (link.shared) link.regions = std::make_shared<transport::SharedRegions>();
  }
  if (SharingLink() == nullptr) return;
  transports_.push_back(std::make_unique<transport::ShmTransport>(64));
}

// Keys share memory with one daemon at most.
SimWorker::Link* SimWorker::SharingLink() const {
  const auto found =
      std::find_if(links_.begin(), links_.end(), [](const auto& link) { return link->shared; });
  return found == links_.end() ? nullptr : found->get();
}

std::unique_ptr<transport::Connection> SimWorker::AttachShared(Link& link,
                                                               const wire::LaneHello& hello) {
  auto memory = link.daemon.Turn(
      [&](server::Control& control) { return control.rank_memories().SharedLaneMemory(hello); });
  PHUB_CHECK(memory.ok(), "error={}", memory.status().ToString());
  int sockets[2];
  PHUB_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets) == 0);
  Descriptor daemons(sockets[0]);
  Descriptor workers(sockets[1]);
  // The kernel closes a dead daemon's sockets.
  auto of_daemon = std::make_shared<const Descriptor>(dup(sockets[0]));
  link.daemon.OnClosed([of_daemon] { ::shutdown(of_daemon->get(), SHUT_RDWR); });
  auto theirs = transport::OfferShmLane(daemons,
                                        {.version = wire::kLaneVersion,
                                         .version_min = wire::kLaneVersionMin,
                                         .version_max = wire::kLaneVersion},
                                        *memory, link.daemon.shm());
  PHUB_CHECK(theirs.ok(), "error={}", theirs.status().ToString());
  std::array<std::byte, wire::kLaneWelcomeBytes + wire::kSharedLaneBytes> answer;
  ReceivedPacket packet = ReceivePacket(workers.get(), answer);
  PHUB_CHECK(packet.bytes == static_cast<std::ptrdiff_t>(answer.size()));
  wire::SharedLane shape;
  PHUB_CHECK(wire::DecodeSharedLane(std::span(answer).last(wire::kSharedLaneBytes), shape));
  auto mine =
      transport::AcceptShmLane(std::move(workers), shape, packet, link.regions, link.daemon.shm());
  PHUB_CHECK(mine.ok(), "error={}", mine.status().ToString());
  (*mine)->SetVersion(wire::kLaneVersion);
  link.daemon.Turn([&](server::Control& control) {
    control.lanes().AttachLane(hello, *std::move(theirs), kShmTransportIndex, "shm",
                               fmt::format("node{}", node_));
  });
  return *std::move(mine);
}

// Draws where the memory of the batch's keys is. Returns the number of bytes to share.
std::uint64_t SimWorker::PlanMemory(const v1::AddKeysRequest& request) {
  std::uint64_t total = 0;
  memory_plans_.assign(static_cast<std::size_t>(request.keys_size()), {});
  if (SharingLink() == nullptr) return 0;
  // As in libphub: memory for two versions, or with parts from several daemons, is not contiguous.
  const bool one_stretch = links_.size() == 1 && !script_.restart;
  const auto first = static_cast<std::size_t>(
      std::ranges::find(script_.keys, next_batch_, &KeyScript::batch) - script_.keys.begin());
  for (std::size_t i = 0; i < memory_plans_.size(); ++i) {
    const std::size_t index = first + i;
    const KeyScript& key = script_.keys[index];
    const std::uint64_t elements = PushedBy(script_, key, rank_).size();
    const std::uint64_t encoded = Key::EncodedFloats(script_, static_cast<std::uint32_t>(index));
    const std::uint64_t pushed = std::max<std::uint64_t>(elements, encoded) * sizeof(float);
    const std::uint64_t received = ReceivedBy(script_, key, rank_).size() * sizeof(float);
    MemoryPlan& plan = memory_plans_[i];
    if (random_.Chance(3, 4) && pushed > 0) plan.gradients = AddPiece(pushed, total);
    const std::uint64_t kind = random_.Below(3);
    if (kind == 0 && received > 0) plan.parameters = AddPiece(received, total);
    plan.parameters_shared = kind == 1 && one_stretch && key.optimizer != simd::Optimizer::kNone;
  }
  return total;
}

// Returns false if the daemon no longer provides the memory.
bool SimWorker::FetchMemory(Link& link, std::uint32_t batch) {
  if (&link == SharingLink()) batch_memory_.resize(batch + 1);
  link.regions_before.resize(batch);
  link.regions_before.push_back(link.regions->count());
  if (link.placed.shared_nonce().empty()) return true;
  if (!link.daemon.alive()) return false;
  wire::SharedBatchRequest request{.batch = batch,
                                   .rank = Rank{rank_},
                                   .incarnation = config_.incarnation,
                                   .membership_epoch = config_.membership_epoch,
                                   .nonce = {}};
  std::transform(link.placed.shared_nonce().begin(), link.placed.shared_nonce().end(),
                 request.nonce.begin(), [](char c) { return static_cast<std::byte>(c); });
  transport::BatchMemory given;
  const wire::LaneRefusal refusal = link.daemon.Turn([&](server::Control& control) {
    return control.rank_memories().AdmitBatch(request, {.pid = node_, .uid = 0}, given);
  });
  if (refusal != wire::LaneRefusal::kNone) {
    if (refusal != wire::LaneRefusal::kJob) {
      mistake_ = fmt::format("batch {} refused: {}", batch, wire::ToString(refusal));
    }
    return false;
  }
  transport::FetchedBatch fetched{
      .worker = MapAgain(given.worker, SharedMemory::Access::kWrite),
      .parameters = MapAgain(given.parameters, SharedMemory::Access::kRead),
      .worker_region = given.worker_region,
      .parameters_region = given.parameters_region};
  if (const absl::Status status = transport::AddRegions(fetched, *link.regions); !status.ok()) {
    mistake_ = status.ToString();
    return false;
  }
  if (&link == SharingLink()) batch_memory_[batch] = fetched;
  fetched_.push_back(std::move(fetched));
  return true;
}

void SimWorker::TakeMemory(Key& key, const MemoryPlan& plan, const v1::KeyPlacement& placement) {
  TakeSharedMemory(key, plan, placement);
  // The result arrives where the gradient is, for half of the ranks of each key. A round that is
  // cancelled leaves neither there.
  const KeyScript& script = script_.keys[key.index];
  const bool may = script.collective && script.movement == KeyMovement::kAllReduce &&
                   script.encoding.none() && script_.cancel_chance == 0;
  if (!may || (rank_ + key.index) % 2 == 0) return;
  key.parameters = key.gradients;
  ++reduced_in_place_;
}

void SimWorker::TakeSharedMemory(Key& key, const MemoryPlan& plan,
                                 const v1::KeyPlacement& placement) {
  if (SharingLink() == nullptr) return;
  const transport::FetchedBatch& memory = batch_memory_[next_batch_];
  const auto at = [](const SharedMemory& region, std::uint64_t offset) {
    return reinterpret_cast<float*>(region.data() + offset);
  };
  if (plan.gradients != MemoryPlan::kElsewhere) key.gradients = at(*memory.worker, plan.gradients);
  if (plan.parameters != MemoryPlan::kElsewhere) {
    key.parameters = at(*memory.worker, plan.parameters);
  } else if (plan.parameters_shared && memory.parameters != nullptr) {
    key.parameters = at(*memory.parameters, placement.shared_offset());
    key.parameters_shared = true;
    ++parameters_shared_;
  }
}

}  // namespace phub::sim
