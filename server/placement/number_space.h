// Numbers of keys, or of the chunks on one core loop: ranges that are taken and given back. Without
// gaps as long as only the last ranges are given back. Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>

namespace phub::server {

class NumberSpace {
 public:
  // Takes the numbers after all others, or the first gap that is large enough. Returns the first.
  std::uint32_t Append(std::uint32_t count);
  std::uint32_t Take(std::uint32_t count);
  // REQUIRES: the range was taken, as a whole or in parts.
  void Return(std::uint32_t first, std::uint32_t count);

  std::uint32_t end() const { return end_; }    // after the last number in use
  std::uint32_t used() const { return used_; }  // how many numbers are in use

 private:
  std::map<std::uint32_t, std::uint32_t> gaps_;  // first number -> count; apart, and below end_
  std::uint32_t end_ = 0;
  std::uint32_t used_ = 0;
};

}  // namespace phub::server
