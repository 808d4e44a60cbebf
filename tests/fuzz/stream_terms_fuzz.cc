#include "common/aggregation/stream_terms.h"
#include "tests/fuzz/wire_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::aggregation::StreamTerms;
  StreamTerms untouched;
  untouched.worker = 77;
  const auto decode = [](std::span<const std::byte> bytes, StreamTerms& terms) {
    if (!phub::aggregation::DecodeStreamTerms(bytes, terms)) return false;
    PHUB_CHECK(bytes.size() == phub::aggregation::kStreamTermsBytes, "bytes={}", bytes.size());
    PHUB_CHECK(terms.worker < terms.worker_count && terms.worker_count <= PHUB_WORKERS_MAX);
    const phub_lease lease = phub::aggregation::LeaseOf(terms);
    PHUB_CHECK(lease.slot_count > 0 && lease.slot_count <= 1u << 16, "{}", lease.slot_count);
    return true;
  };
  phub::fuzz::CheckDecoder<phub::aggregation::kStreamTermsBytes>(
      phub::fuzz::Bytes(data, size), untouched, decode, phub::aggregation::EncodeStreamTerms);
  return 0;
}
