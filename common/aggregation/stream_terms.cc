#include "common/aggregation/stream_terms.h"

#include <algorithm>

#include "common/base/check.h"

namespace phub::aggregation {
namespace {

constexpr std::size_t kZeroAt = 50;

bool CanBeFollowed(const StreamTerms& terms) {
  const Geometry& geometry = terms.geometry;
  const std::uint64_t slots = std::uint64_t{geometry.positions} * geometry.blocks;
  // A slot's number has 16 bits.
  return terms.lease != kNoLease && terms.worker < terms.worker_count &&
         terms.worker_count <= PHUB_WORKERS_MAX && terms.count_max > 0 &&
         terms.count_max <= PHUB_PACKET_COUNT_MAX && geometry.positions > 0 &&
         geometry.blocks > 0 && geometry.blocks <= kChunkBlocksMax && slots <= 1u << 16 &&
         terms.aggregator.port != 0;
}

}  // namespace

bool operator==(const StreamTerms& a, const StreamTerms& b) {
  return a.lease == b.lease && a.worker == b.worker && a.worker_count == b.worker_count &&
         a.count_max == b.count_max && a.geometry.positions == b.geometry.positions &&
         a.geometry.blocks == b.geometry.blocks && a.key.words[0] == b.key.words[0] &&
         a.key.words[1] == b.key.words[1] &&
         phub_endpoint_equals(&a.aggregator, &b.aggregator) != 0;
}

std::uint32_t BlocksOf(std::uint32_t element_count, std::uint32_t block) {
  PHUB_CHECK(block > 0);
  const std::uint32_t blocks = element_count / block + (element_count % block == 0 ? 0 : 1);
  return blocks <= kChunkBlocksMax ? blocks : 0;
}

phub_lease LeaseOf(const StreamTerms& terms) {
  phub_lease lease{};
  lease.number = terms.lease.value;
  lease.slot_count = terms.geometry.positions * terms.geometry.blocks;
  lease.worker_count = terms.worker_count;
  lease.count_max = terms.count_max;
  lease.key = terms.key;
  lease.aggregator = terms.aggregator;
  return lease;
}

void EncodeStreamTerms(const StreamTerms& terms, std::span<std::byte, kStreamTermsBytes> bytes) {
  PHUB_CHECK(CanBeFollowed(terms), "lease={} worker={}", terms.lease.value, terms.worker);
  std::ranges::fill(bytes, std::byte{0});
  auto* const at = reinterpret_cast<__u8*>(bytes.data());
  phub_store32(at, terms.lease.value);
  at[4] = terms.worker;
  at[5] = terms.worker_count;
  phub_store16(at + 6, terms.count_max);
  phub_store32(at + 8, terms.geometry.positions);
  phub_store32(at + 12, terms.geometry.blocks);
  phub_store64(at + 16, terms.key.words[0]);
  phub_store64(at + 24, terms.key.words[1]);
  phub_store64(at + 32, terms.aggregator.address[0]);
  phub_store64(at + 40, terms.aggregator.address[1]);
  phub_store16(at + 48, terms.aggregator.port);
}

bool DecodeStreamTerms(std::span<const std::byte> bytes, StreamTerms& terms) {
  if (bytes.size() != kStreamTermsBytes) return false;
  const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
  if (!std::ranges::all_of(bytes.subspan(kZeroAt), is_zero)) return false;
  const auto* const at = reinterpret_cast<const __u8*>(bytes.data());
  StreamTerms decoded;
  decoded.lease = LeaseNumber{phub_load32(at)};
  decoded.worker = at[4];
  decoded.worker_count = at[5];
  decoded.count_max = phub_load16(at + 6);
  decoded.geometry = {.positions = phub_load32(at + 8), .blocks = phub_load32(at + 12)};
  decoded.key.words[0] = phub_load64(at + 16);
  decoded.key.words[1] = phub_load64(at + 24);
  decoded.aggregator.address[0] = phub_load64(at + 32);
  decoded.aggregator.address[1] = phub_load64(at + 40);
  decoded.aggregator.port = phub_load16(at + 48);
  if (!CanBeFollowed(decoded)) return false;
  terms = decoded;
  return true;
}

}  // namespace phub::aggregation
