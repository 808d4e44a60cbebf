// What the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput; it is linked
// - with run_corpus.cc, in every build: the files of tests/fuzz/corpus/<target> and a fixed number
//   of deterministic mutations of them, a ctest entry fuzz_<target>_corpus;
// - with libFuzzer, in the preset `fuzz` (clang).
// A property that does not hold aborts (PHUB_CHECK); reads past the input are for the sanitizers
// and, in run_corpus, for a guard page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace phub::fuzz {

inline std::span<const std::byte> Bytes(const std::uint8_t* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace phub::fuzz
