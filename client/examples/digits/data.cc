#include "client/examples/digits/data.h"

#include <zlib.h>

#include <charconv>
#include <memory>
#include <numeric>
#include <string_view>

#include "client/examples/digits/random.h"

namespace digits {
namespace {

constexpr std::uint64_t kSplitSeed = 2026;
constexpr std::uint64_t kShuffleSeed = 1;
constexpr std::size_t kTestFraction = 5;  // one in five
constexpr std::size_t kPixelMax = 16;
constexpr int kLineBytesMax = 1024;  // a line has 65 numbers of at most two digits

// The next comma-separated number of `line`, at most `max`; false if the line has no more.
bool TakeNumber(std::string_view& line, std::size_t max, std::size_t& number) {
  const char* end = line.data() + line.size();
  const auto [stop, problem] = std::from_chars(line.data(), end, number);
  if (problem != std::errc() || number > max) return false;
  if (stop != end && *stop != ',') return false;
  line.remove_prefix(static_cast<std::size_t>(stop - line.data()) + (stop == end ? 0 : 1));
  return true;
}

bool ParseLine(std::string_view line, Digit& digit) {
  std::size_t number = 0;
  for (float& pixel : digit.pixels) {
    if (!TakeNumber(line, kPixelMax, number)) return false;
    pixel = static_cast<float>(number) / static_cast<float>(kPixelMax);
  }
  return TakeNumber(line, kClasses - 1, digit.label) && line.empty();
}

std::optional<std::vector<Digit>> ReadLines(const std::string& path, std::string& error) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) {
    error = "cannot open " + path;
    return std::nullopt;
  }
  std::vector<Digit> digits;
  char buffer[kLineBytesMax];
  while (gzgets(file.get(), buffer, kLineBytesMax) != nullptr) {
    std::string_view line(buffer);
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    Digit digit;
    if (!ParseLine(line, digit)) {
      error = path + ", line " + std::to_string(digits.size() + 1) +
              ": expected 64 numbers from 0 to 16 and a label from 0 to 9, separated by commas";
      return std::nullopt;
    }
    digits.push_back(digit);
  }
  if (!gzeof(file.get())) {  // damaged or truncated
    error = path + ": cannot read beyond line " + std::to_string(digits.size()) +
            "; the file is probably damaged or truncated";
    return std::nullopt;
  }
  return digits;
}

}  // namespace

std::optional<DataSet> LoadDigits(const std::string& path, std::string& error) {
  std::optional<std::vector<Digit>> digits = ReadLines(path, error);
  if (!digits) return std::nullopt;
  Random(kSplitSeed).Shuffle(*digits);
  DataSet set;
  const auto test_count = static_cast<std::ptrdiff_t>(digits->size() / kTestFraction);
  set.test.assign(digits->begin(), digits->begin() + test_count);
  set.train.assign(digits->begin() + test_count, digits->end());
  if (set.test.empty()) {
    error = path + ": has only " + std::to_string(digits->size()) + " digits";
    return std::nullopt;
  }
  return set;
}

Dealer::Dealer(const std::vector<Digit>& train, std::size_t world_size, std::size_t batch_size)
    : train_(train),
      world_size_(world_size),
      batch_size_(batch_size),
      iterations_per_pass_(train.size() / (world_size * batch_size)),
      batch_(batch_size) {
  StartPass(0);
}

void Dealer::StartPass(std::size_t pass) {
  pass_ = pass;
  order_.resize(train_.size());
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  Random(kShuffleSeed + pass).Shuffle(order_);
}

const std::vector<const Digit*>& Dealer::Batch(std::size_t iteration, std::size_t rank) {
  if (iteration / iterations_per_pass_ != pass_) StartPass(iteration / iterations_per_pass_);
  const std::size_t first = ((iteration % iterations_per_pass_) * world_size_ + rank) * batch_size_;
  for (std::size_t i = 0; i < batch_size_; ++i) batch_[i] = &train_[order_[first + i]];
  return batch_;
}

}  // namespace digits
