// What must hold of every decoder of the wire, whatever the bytes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {

// `decode(bytes, value)` says whether it accepts; `encode(value, array)` writes kEncodedBytes.
// - Refused: the value is left alone.
// - Accepted: every bit of the form is accounted for, so encoding gives the same bytes again, and
//   decoding those gives the same value. (Bytes behind the form, if any, are not its business.)
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
