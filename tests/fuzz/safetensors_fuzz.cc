// Parses any bytes as a safetensors file, and as a header for as much data as their first eight
// bytes say. An accepted header covers its data, and is written and read back to the same value.
#include <string>

#include "common/base/status_text.h"
#include "common/checkpoint/metadata.h"
#include "common/checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {
namespace {

using checkpoint::SafetensorsHeader;

void CheckDescribed(const SafetensorsHeader& header) {
  const auto description = checkpoint::DescriptionOf(header);
  if (!description.ok()) {
    PHUB_CHECK(!description.status().message().empty());
    return;
  }
  PHUB_CHECK(checkpoint::CheckDescription(*description).ok());
  PHUB_CHECK(TensorsOf(*description).size() == header.tensors.size());
  const auto again = checkpoint::DescriptionOf(checkpoint::HeaderOf(*description));
  PHUB_CHECK(again.ok(), "{}", MessageOf(again.status()));
  PHUB_CHECK(*again == *description);
}

void CheckHeader(std::string_view json, std::uint64_t data_bytes) {
  const auto header = checkpoint::ParseHeader(json, data_bytes);
  if (!header.ok()) {
    PHUB_CHECK(!header.status().message().empty());
    return;
  }
  std::uint64_t at = 0;
  for (const checkpoint::PlacedTensor& tensor : header->tensors) {
    PHUB_CHECK(tensor.begin == at && tensor.end >= at, "begin={} at={}", tensor.begin, at);
    at = tensor.end;
  }
  PHUB_CHECK(at == data_bytes, "at={} data_bytes={}", at, data_bytes);
  const std::string encoded = checkpoint::EncodeHeader(*header);
  const auto again = checkpoint::ParseHeader(
      std::string_view(encoded).substr(checkpoint::kHeaderLengthBytes), data_bytes);
  PHUB_CHECK(again.ok(), "{}", MessageOf(again.status()));
  PHUB_CHECK(*again == *header);
  CheckDescribed(*header);
}

}  // namespace
}  // namespace phub::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using phub::checkpoint::kHeaderLengthBytes;
  if (size < kHeaderLengthBytes) return 0;
  const auto bytes = phub::fuzz::Bytes(data, size);
  const std::string_view rest(reinterpret_cast<const char*>(data) + kHeaderLengthBytes,
                              size - kHeaderLengthBytes);
  std::uint64_t first = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) first |= std::uint64_t{data[i]} << (8 * i);
  const auto length = phub::checkpoint::DecodeHeaderLength(bytes.first<kHeaderLengthBytes>(), size);
  PHUB_CHECK(length.ok() == (first <= rest.size()), "first={} size={}", first, size);
  if (length.ok()) phub::fuzz::CheckHeader(rest.substr(0, *length), rest.size() - *length);
  phub::fuzz::CheckHeader(rest, first);
  return 0;
}
