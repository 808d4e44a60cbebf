// The data set of 8x8 handwritten digits, and its distribution over ranks and iterations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace digits {

inline constexpr std::size_t kPixels = 64;
inline constexpr std::size_t kClasses = 10;

struct Digit {
  std::array<float, kPixels> pixels{};  // 0 to 1
  std::size_t label = 0;                // 0 to 9
};

// A fixed split: the same for every reader of the same file.
struct DataSet {
  std::vector<Digit> train;
  std::vector<Digit> test;  // a fifth of all digits
};

// Reads lines of 64 pixels of 0..16 and a label, gzip-compressed or not. If the file cannot be
// read, returns no value and sets `error` to what is wrong and where.
std::optional<DataSet> LoadDigits(const std::string& path, std::string& error);

// Deals the training digits. Each pass over them has a new random order. Each iteration takes the
// next world_size x batch_size digits, and rank r takes the r-th part. Every rank computes the same
// order, so nothing is sent. A pass ignores a remainder that is too small for an iteration.
class Dealer {
 public:
  // REQUIRES: train.size() >= world_size * batch_size > 0. `train` outlives the dealer.
  Dealer(const std::vector<Digit>& train, std::size_t world_size, std::size_t batch_size);

  // The digits of one rank in one iteration; valid until the next call.
  const std::vector<const Digit*>& Batch(std::size_t iteration, std::size_t rank);

 private:
  const std::vector<Digit>& train_;
  const std::size_t world_size_;
  const std::size_t batch_size_;
  const std::size_t iterations_per_pass_;
  std::size_t pass_;
  std::vector<std::size_t> order_;  // in the current pass
  std::vector<const Digit*> batch_;

  void StartPass(std::size_t pass);
};

}  // namespace digits
