// Work that keeps a core loop for long inside one run. A loop that sends nothing for long looks
// dead to workers and to other racks, so code that does such work notes it piece by piece, and
// keep-alives are sent from inside it (loop/keep_alives.h).
//
// One for each core loop; loop's thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace phub::server {

class LongWork {
 public:
  // Takes several milliseconds. The clock is read once for as much work.
  static constexpr std::uint64_t kBytesPerCheck = 32 << 20;

  // Call it after work that read and wrote that many bytes.
  void Note(std::uint64_t bytes) {
    bytes_ += bytes;
    if (bytes_ >= kBytesPerCheck) NoteLong();
  }
  // Call it after work that took several milliseconds.
  void NoteLong() {
    bytes_ = 0;
    OnLongWork();
  }

 protected:
  ~LongWork() = default;
  void Forget() { bytes_ = 0; }
  virtual void OnLongWork() = 0;

 private:
  std::uint64_t bytes_ = 0;
};

// Calls part(first, count) for consecutive ranges of `count` elements. A range takes a few
// milliseconds at most. Notes all ranges but the last: the end of a whole round is noted anyway.
// bytes_per_element: what is read and written for one. work may be null.
template <typename Part>
void InParts(LongWork* work, std::size_t count, std::uint64_t bytes_per_element, Part&& part) {
  constexpr std::size_t kAlignment = 1024;  // elements; keeps vectors and cache lines whole
  const std::size_t most = static_cast<std::size_t>(LongWork::kBytesPerCheck / bytes_per_element);
  const std::size_t step = std::max(kAlignment, most / kAlignment * kAlignment);
  for (std::size_t first = 0; first < count; first += step) {
    const std::size_t size = std::min(step, count - first);
    part(first, size);
    if (work != nullptr && first + size < count) work->NoteLong();
  }
}

}  // namespace phub::server
