// The data set: 8x8 handwritten digits, and which of them every rank sees in every iteration.
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

// A fixed split: every reader of the same file gets the same.
struct DataSet {
  std::vector<Digit> train;
  std::vector<Digit> test;  // a fifth of the whole
};

// Reads lines of 64 pixels of 0..16 and a label, gzip-compressed or not. Empty, with `error` set
// to what is wrong and where, if the file cannot be read.
std::optional<DataSet> LoadDigits(const std::string& path, std::string& error);

// Deals the training digits: each pass over them is shuffled anew, each iteration takes the next
// world_size x batch_size of them, and rank r the r-th part. Every rank computes the same order on
// its own, so nothing needs to be sent. A remainder that fills no iteration is left for next pass.
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
  std::vector<std::size_t> order_;  // of the current pass
  std::vector<const Digit*> batch_;

  void StartPass(std::size_t pass);
};

}  // namespace digits
