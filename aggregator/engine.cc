#include "aggregator/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/units.h"

namespace phub::aggregator {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are little-endian");

constexpr std::uint32_t kSlotsMax = 1u << 16;  // the header has 16 bits
constexpr DurationNs kKeepAliveMin = 100 * kMillisecond;
constexpr DurationNs kKeepAliveMax = 600 * kSecond;
constexpr std::uint32_t kKinds = PHUB_KINDS_FROM_WORKERS | PHUB_KINDS_FROM_CORE_LOOP;
constexpr std::uint64_t kLeaseBytes = 4096;  // what a lease costs besides its slots, rounded up

const phub_lease kNoSuchLease{};

absl::Status CheckShape(const LeaseRequest& request) {
  const phub_lease& lease = request.lease;
  const auto invalid = [](std::string why) { return absl::InvalidArgumentError(std::move(why)); };
  if (request.tenant.empty() || request.tenant.size() > 255)
    return invalid("the tenant's name must have 1 to 255 bytes");
  if (request.job.size() > 255) return invalid("the job's name has more than 255 bytes");
  if (lease.worker_count < 1 || lease.worker_count > PHUB_WORKERS_MAX)
    return invalid(
        fmt::format("{} workers: a lease has 1 to {}", lease.worker_count, PHUB_WORKERS_MAX));
  if (lease.slot_count < 1 || lease.slot_count > kSlotsMax)
    return invalid(fmt::format("slot_count={}: a lease has 1 to {}", lease.slot_count, kSlotsMax));
  if (lease.count_max < 1 || lease.count_max > PHUB_PACKET_COUNT_MAX)
    return invalid(fmt::format("count_max={}: a block has 1 to {} integers", lease.count_max,
                               PHUB_PACKET_COUNT_MAX));
  if (request.keep_alive < kKeepAliveMin || request.keep_alive > kKeepAliveMax)
    return invalid(fmt::format("keep_alive_ms={}: it must be 100 to 600000",
                               request.keep_alive / kMillisecond));
  if (lease.core_loop.port == 0) return invalid("core_loop has port 0");
  for (std::uint32_t i = 0; i < lease.worker_count; ++i) {
    if (lease.workers[i].port == 0) return invalid(fmt::format("worker {} has port 0", i));
    for (std::uint32_t j = 0; j < i; ++j) {
      if (phub_endpoint_equals(&lease.workers[i], &lease.workers[j]))
        return invalid(fmt::format("workers {} and {} have the same address and port", j, i));
    }
  }
  return absl::OkStatus();
}

bool IsFromCoreLoop(std::span<const std::uint8_t> datagram) {
  return datagram.size() >= PHUB_PACKET_BYTES && datagram[3] < 32 &&
         (PHUB_KIND_BIT(std::uint32_t{datagram[3]}) & PHUB_KINDS_FROM_CORE_LOOP) != 0;
}

}  // namespace

const char* NameOf(phub_check check) {
  switch (check) {
    case PHUB_CHECK_GOOD: return "good";
    case PHUB_CHECK_TRUNCATED: return "truncated";
    case PHUB_CHECK_FOREIGN: return "foreign";
    case PHUB_CHECK_WRONG_KIND: return "wrong_kind";
    case PHUB_CHECK_WRONG_LEASE: return "wrong_lease";
    case PHUB_CHECK_WRONG_WORKER: return "wrong_worker";
    case PHUB_CHECK_WRONG_SOURCE: return "wrong_source";
    case PHUB_CHECK_FORGED: return "forged";
    case PHUB_CHECK_WRONG_SLOT: return "wrong_slot";
    case PHUB_CHECK_OVERSIZED: return "oversized";
    case PHUB_CHECK_CORRUPT: return "corrupt";
    case PHUB_CHECK_COUNT: break;
  }
  return "unknown";
}

const char* NameOf(phub_verdict verdict) {
  switch (verdict) {
    case PHUB_VERDICT_STORE: return "store";
    case PHUB_VERDICT_STORE_LAST: return "store_last";
    case PHUB_VERDICT_ADD: return "add";
    case PHUB_VERDICT_ADD_LAST: return "add_last";
    case PHUB_VERDICT_REFUSED: return "refused";
    case PHUB_VERDICT_REPEATED: return "repeated";
    case PHUB_VERDICT_EARLY: return "early";
    case PHUB_VERDICT_PHASE: return "phase";
    case PHUB_VERDICT_COUNT: break;
  }
  return "unknown";
}

const char* NameOfKind(std::uint32_t kind) {
  switch (kind) {
    case PHUB_PACKET_PAYLOAD: return "payload";
    case PHUB_PACKET_NACK: return "nack";
    case PHUB_PACKET_PARAMETERS: return "parameters";
    default: return nullptr;
  }
}

struct Engine::Held {
  LeaseRequest request;
  TimeNs renewed = 0;
  std::uint64_t sums = 0;
  std::uint16_t last_nack = 0;  // the number of the last one that was handled
  std::vector<phub_slot> slots;
  std::vector<std::uint32_t> values;

  std::uint32_t* ValuesOf(std::uint32_t slot) {
    return values.data() + std::size_t{slot} * request.lease.count_max;
  }
};

Engine::Engine(const Limits& limits, const phub_endpoint& own, Send send, KernelSlots* kernel)
    : limits_(limits), own_(own), send_(std::move(send)), kernel_(kernel) {}
Engine::~Engine() = default;

Counters Engine::counters() const {
  Counters counters = counters_;
  if (kernel_ != nullptr) kernel_->AddTo(counters);
  return counters;
}

std::uint64_t Engine::BytesOf(const phub_lease& lease) const {
  const std::uint64_t slot = kernel_ != nullptr
                                 ? kernel_->slot_bytes()
                                 : sizeof(phub_slot) + sizeof(std::uint32_t) * lease.count_max;
  return kLeaseBytes + lease.slot_count * slot;
}

absl::Status Engine::CheckRoom(const LeaseRequest& request) const {
  const std::uint64_t bytes = BytesOf(request.lease);
  const auto found = tenant_bytes_.find(request.tenant);
  const std::uint64_t tenant = found == tenant_bytes_.end() ? 0 : found->second;
  if (bytes > limits_.tenant_bytes - std::min(tenant, limits_.tenant_bytes)) {
    return absl::ResourceExhaustedError(fmt::format(
        "the lease needs {}, and tenant \"{}\" has {} of its share of {} "
        "(--tenant-pool)",
        HumanBytes(bytes), request.tenant, HumanBytes(tenant), HumanBytes(limits_.tenant_bytes)));
  }
  if (bytes > limits_.pool_bytes - bytes_used_) {
    return absl::ResourceExhaustedError(
        fmt::format("the lease needs {}, and {} of the pool of {} are in use (--pool)",
                    HumanBytes(bytes), HumanBytes(bytes_used_), HumanBytes(limits_.pool_bytes)));
  }
  return absl::OkStatus();
}

absl::Status Engine::Grant(LeaseRequest request, TimeNs now) {
  absl::Status status = CheckShape(request);
  if (status.ok()) status = CheckRoom(request);
  if (status.ok() && (request.lease.number == 0 || leases_.contains(request.lease.number)))
    status = absl::AlreadyExistsError(fmt::format("lease {} is in use", request.lease.number));
  request.lease.aggregator = own_;
  if (status.ok() && kernel_ != nullptr) status = kernel_->Grant(request.lease);
  if (!status.ok()) {
    ++counters_.leases_refused;
    return status;
  }
  auto held = std::make_unique<Held>();
  const std::uint64_t bytes = BytesOf(request.lease);
  if (kernel_ == nullptr) {
    held->slots.resize(request.lease.slot_count);  // zeros
    held->values.resize(std::size_t{request.lease.slot_count} * request.lease.count_max);
  }
  held->renewed = now;
  tenant_bytes_[request.tenant] += bytes;
  bytes_used_ += bytes;
  slots_ += request.lease.slot_count;
  held->request = std::move(request);
  ++counters_.leases_granted;
  leases_.emplace(held->request.lease.number, std::move(held));
  return absl::OkStatus();
}

Engine::Leases_::iterator Engine::FindOf(const std::string& owner, std::uint32_t number) {
  const auto found = leases_.find(number);
  return found != leases_.end() && found->second->request.owner == owner ? found : leases_.end();
}

bool Engine::Renew(std::uint32_t number, const std::string& owner, TimeNs now) {
  const auto found = FindOf(owner, number);
  if (found == leases_.end()) return false;
  found->second->renewed = now;
  return true;
}

Engine::Leases_::iterator Engine::Release(Leases_::iterator lease) {
  const LeaseRequest& request = lease->second->request;
  if (kernel_ != nullptr) kernel_->End(request.lease.number);
  const std::uint64_t bytes = BytesOf(request.lease);
  const auto tenant = tenant_bytes_.find(request.tenant);
  tenant->second -= bytes;
  if (tenant->second == 0) tenant_bytes_.erase(tenant);
  bytes_used_ -= bytes;
  slots_ -= request.lease.slot_count;
  return leases_.erase(lease);
}

bool Engine::End(std::uint32_t number, const std::string& owner) {
  const auto found = FindOf(owner, number);
  if (found == leases_.end()) return false;
  Release(found);
  ++counters_.leases_ended;
  return true;
}

std::vector<std::uint32_t> Engine::Expire(TimeNs now) {
  std::vector<std::uint32_t> expired;
  for (auto each = leases_.begin(); each != leases_.end();) {
    if (now - each->second->renewed < each->second->request.keep_alive) {
      ++each;
      continue;
    }
    expired.push_back(each->first);
    ++counters_.leases_expired;
    each = Release(each);
  }
  return expired;
}

std::vector<Engine::Info> Engine::Leases() const {
  std::vector<Info> infos;
  for (const auto& [number, held] : leases_) {
    const LeaseRequest& request = held->request;
    infos.push_back({.number = number,
                     .owner = request.owner,
                     .tenant = request.tenant,
                     .job = request.job,
                     .workers = request.lease.worker_count,
                     .slots = request.lease.slot_count,
                     .bytes = BytesOf(request.lease),
                     .sums = kernel_ != nullptr ? kernel_->Sums(number) : held->sums});
  }
  return infos;
}

void Engine::Receive(std::span<const std::uint8_t> datagram, const phub_endpoint& source) {
  Held* held = nullptr;
  if (kernel_ != nullptr && !IsFromCoreLoop(datagram)) return kernel_->HandIn(datagram, source);
  if (datagram.size() >= PHUB_PACKET_BYTES) {
    const auto found = leases_.find(phub_load32(datagram.data() + 4));
    if (found != leases_.end()) held = found->second.get();
  }
  phub_packet packet{};
  const phub_check check =
      phub_packet_check(held == nullptr ? &kNoSuchLease : &held->request.lease, kKinds,
                        datagram.data(), static_cast<__u32>(datagram.size()), &source, &packet);
  ++counters_.checks[check];
  if (check != PHUB_CHECK_GOOD) return;
  ++counters_.kinds[packet.kind];
  const std::span<const std::uint8_t> payload = datagram.subspan(PHUB_PACKET_BYTES);
  if (packet.kind == PHUB_PACKET_NACK) return AnswerNack(*held, packet, payload);
  if (packet.kind == PHUB_PACKET_PARAMETERS) return ForwardParameters(*held, packet, datagram);
  Contribute(*held, packet, payload);
}

void Engine::Contribute(Held& held, const phub_packet& packet,
                        std::span<const std::uint8_t> payload) {
  phub_slot& slot = held.slots[packet.slot];
  const phub_verdict verdict = phub_slot_receive(&slot, &packet, held.request.lease.worker_count);
  ++counters_.verdicts[verdict];
  switch (verdict) {
    case PHUB_VERDICT_STORE:
    case PHUB_VERDICT_STORE_LAST:
    case PHUB_VERDICT_ADD:
    case PHUB_VERDICT_ADD_LAST:
      phub_slot_add(held.ValuesOf(packet.slot), payload.data(), packet.count,
                    verdict == PHUB_VERDICT_STORE || verdict == PHUB_VERDICT_STORE_LAST);
      if (slot.state != PHUB_SLOT_SUMMED) return;
      ++held.sums;
      return SendSum(held, packet, slot, held.ValuesOf(packet.slot));
    case PHUB_VERDICT_REFUSED: return Refuse(held, packet, slot);
    default: return;
  }
}

void Engine::AnswerNack(Held& held, const phub_packet& packet,
                        std::span<const std::uint8_t> payload) {
  phub_nack nack{};
  phub_packet_get_nack(&packet, &nack);
  if (phub_nack_is_later(nack.number, held.last_nack) == 0) {
    ++counters_.nacks_dropped;
    return;
  }
  held.last_nack = nack.number;
  for (std::uint32_t word = 0; word < packet.count; ++word) {
    for (std::uint32_t bits = phub_load32(payload.data() + 4 * std::size_t{word}); bits != 0;
         bits &= bits - 1) {
      const std::uint32_t slot =
          nack.slot + 32 * word + static_cast<std::uint32_t>(std::countr_zero(bits));
      if (slot >= held.request.lease.slot_count) return;
      AnswerNackOf(held, {.lease = packet.lease,
                          .phase = packet.phase,
                          .payload_sum = 0,
                          .slot = static_cast<__u16>(slot),
                          .count = 0,
                          .kind = PHUB_PACKET_MISSING,
                          .worker = 0,
                          .exponent = 0,
                          .next_exponent = 0});
    }
  }
}

// `about`: a MISSING for the slot, without a worker.
void Engine::AnswerNackOf(const Held& held, phub_packet about) {
  phub_slot slot{};
  std::array<std::uint32_t, PHUB_PACKET_COUNT_MAX> values;
  if (!ReadSlot(about.lease, about.slot, slot, values)) return;
  const phub_nacked nacked = phub_slot_nacked(&slot, about.phase, held.request.lease.worker_count);
  if (nacked.send_sum != 0) {
    ++counters_.sums_repeated;
    return SendSum(held, about, slot, values.data());
  }
  for (std::uint64_t missing = nacked.missing; missing != 0; missing &= missing - 1) {
    about.worker = static_cast<__u8>(std::countr_zero(missing));
    Answer(held, about);
  }
}

void Engine::Refuse(const Held& held, const phub_packet& packet, const phub_slot& slot) {
  phub_packet answer{};
  phub_slot_refusal(&slot, &packet, &answer);
  Answer(held, answer);
}

void Engine::Answer(const Held& held, const phub_packet& answer) {
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&answer, &held.request.lease.key, header.data());
  ++counters_.answers;
  send_(held.request.lease.workers[answer.worker], header, {});
}

void Engine::SendSum(const Held& held, const phub_packet& packet, const phub_slot& slot,
                     const std::uint32_t* values) {
  phub_packet sum{};
  phub_slot_sum(&slot, &packet, &sum);
  std::array<std::uint8_t, PHUB_PACKET_BYTES> header{};
  phub_packet_encode(&sum, &held.request.lease.key, header.data());
  ++counters_.sums;
  send_(held.request.lease.core_loop, header,
        {reinterpret_cast<const std::uint8_t*>(values), sizeof(std::uint32_t) * sum.count});
}

void Engine::TakeKernelEvents() {
  if (kernel_ == nullptr) return;
  kernel_->TakeEvents([this](const KernelEvent& event) { Perform(event); });
}

void Engine::Perform(const KernelEvent& event) {
  const auto found = leases_.find(event.packet.lease);
  if (found == leases_.end()) return;
  const Held& held = *found->second;
  if (event.verdict == PHUB_VERDICT_REFUSED) return Refuse(held, event.packet, event.slot);
  phub_slot slot{};
  std::array<std::uint32_t, PHUB_PACKET_COUNT_MAX> values{};
  // A slot that has gone on to a later phase has had its sum taken.
  if (!kernel_->Read(event.packet.lease, event.packet.slot, slot, values) ||
      slot.phase != event.packet.phase || slot.state != PHUB_SLOT_SUMMED)
    return;
  SendSum(held, event.packet, slot, values.data());
}

bool Engine::ReadSlot(std::uint32_t lease, std::uint32_t slot, phub_slot& state,
                      std::span<std::uint32_t> values) const {
  if (kernel_ != nullptr) return kernel_->Read(lease, slot, state, values);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return false;
  Held& held = *found->second;
  state = held.slots[slot];
  std::copy_n(held.ValuesOf(slot),
              std::min<std::size_t>(values.size(), held.request.lease.count_max), values.begin());
  return true;
}

void Engine::ForwardParameters(const Held& held, const phub_packet& packet,
                               std::span<const std::uint8_t> datagram) {
  const phub_lease& lease = held.request.lease;
  for (std::uint32_t worker = 0; worker < lease.worker_count; ++worker) {
    if (packet.worker != PHUB_EVERY_WORKER && packet.worker != worker) continue;
    ++counters_.parameters_forwarded;
    send_(lease.workers[worker], datagram.first(PHUB_PACKET_BYTES),
          datagram.subspan(PHUB_PACKET_BYTES));
  }
}

}  // namespace phub::aggregator
