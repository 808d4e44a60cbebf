// Shared by the fuzz targets. A target is one file with LLVMFuzzerTestOneInput. It is linked
// - with run_corpus.cc, in every build: a ctest entry fuzz_<target>_corpus runs the files of
//   tests/fuzz/corpus/<target> and a fixed number of deterministic mutations of them;
// - with libFuzzer, in the preset `fuzz` (clang).
//
// A violated property aborts (PHUB_CHECK). Reads past the input are detected by the sanitizers and,
// in run_corpus, by a guard page.
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
