// Properties that must hold for every decoder of the wire, for any bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {

// `decode(bytes, value)` returns whether it accepts; `encode(value, array)` writes kEncodedBytes.
// - Refused: the value does not change.
// - Accepted: every bit of the message matters, so encoding gives the same bytes again, and
//   decoding those gives the same value. (Bytes after the message, if any, are ignored.)
template <std::size_t kEncodedBytes, typename Value, typename Decode, typename Encode>
void CheckDecoder(std::span<const std::byte> bytes, const Value& untouched, const Decode& decode,
                  const Encode& encode) {
  Value value = untouched;
  if (!decode(bytes, value)) {
    PHUB_CHECK(value == untouched, "a refused input changed the output");
    return;
  }
  PHUB_CHECK(bytes.size() >= kEncodedBytes, "accepted bytes={}", bytes.size());
  std::array<std::byte, kEncodedBytes> again;
  again.fill(std::byte{0xEE});
  encode(value, std::span<std::byte, kEncodedBytes>(again));
  PHUB_CHECK(std::equal(again.begin(), again.end(), bytes.begin()),
             "encoding what was decoded gives other bytes");
  Value value_again = untouched;
  PHUB_CHECK(decode(std::span<const std::byte>(again), value_again), "own encoding is refused");
  PHUB_CHECK(value_again == value, "decoding twice gives two values");
}

}  // namespace phub::fuzz
