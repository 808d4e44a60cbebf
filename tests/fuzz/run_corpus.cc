// Runs a fuzz target without libFuzzer: every file of a folder, then deterministic mutations of
// them.
//   fuzz_<target>_corpus FOLDER MUTATIONS
//
// Each input ends where an inaccessible page begins, so that reading one byte too many crashes in
// every build. On a crash, the input is printed as hex.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "common/base/random.h"
#include "tests/fuzz/fuzz.h"

namespace {

using Input = std::vector<std::uint8_t>;

constexpr std::size_t kInputBytesMax = 64 * 1024;

std::span<const std::uint8_t> current_input;  // for the signal handler

// Async-signal-safe: only write(2).
void PrintInputAndDie(int signal_number) {
  constexpr char kDigits[] = "0123456789abcdef";
  constexpr std::string_view kIntroduction = "crashed on the input with these bytes: ";
  [[maybe_unused]] ssize_t written =
      write(STDERR_FILENO, kIntroduction.data(), kIntroduction.size());
  for (const std::uint8_t byte : current_input) {
    const char text[] = {kDigits[byte >> 4], kDigits[byte & 15]};
    written = write(STDERR_FILENO, text, sizeof text);
  }
  written = write(STDERR_FILENO, "\n", 1);
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

// Memory that is followed by an inaccessible page.
class GuardedMemory {
 public:
  GuardedMemory() {
    const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* const address = mmap(nullptr, kInputBytesMax + page_bytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PHUB_CHECK(address != MAP_FAILED);
    end_ = static_cast<std::uint8_t*>(address) + kInputBytesMax;
    PHUB_CHECK(kInputBytesMax % page_bytes == 0, "page_bytes={}", page_bytes);
    PHUB_CHECK(mprotect(end_, page_bytes, PROT_NONE) == 0);
  }
  void Run(const Input& input) const {
    std::uint8_t* const data = end_ - input.size();
    std::copy(input.begin(), input.end(), data);
    current_input = {data, input.size()};
    LLVMFuzzerTestOneInput(data, input.size());
  }

 private:
  std::uint8_t* end_ = nullptr;  // kept until the process ends
};

std::vector<Input> ReadCorpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the order of a folder differs between machines
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    Input input{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    inputs.push_back(std::move(input));
  }
  return inputs;
}

std::size_t Place(phub::SeededRandom& random, std::size_t bound) {
  return static_cast<std::size_t>(random.Below(bound));
}

void MutateOnce(Input& input, const Input& other, phub::SeededRandom& random) {
  constexpr std::array<std::uint8_t, 8> kTelling = {0x00, 0x01, 0x02, 0x40, 0x7F, 0x80, 0xFE, 0xFF};
  const std::size_t at = input.empty() ? 0 : Place(random, input.size());
  const std::uint64_t choice = input.empty() ? 6 : random.Below(8);
  const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at);
  if (choice <= 1) {
    input[at] = static_cast<std::uint8_t>(input[at] ^ (1u << random.Below(8)));
  } else if (choice == 2) {
    input[at] = kTelling[random.Below(kTelling.size())];
  } else if (choice == 3) {  // a run of up to eight bytes: a whole field
    const std::size_t length = std::min(input.size() - at, 1 + Place(random, 8));
    std::fill_n(begin, length, kTelling[random.Below(kTelling.size())]);
  } else if (choice == 4) {
    input.resize(at);
  } else if (choice == 5) {
    input.erase(begin);
  } else if (choice == 6) {
    input.insert(begin, static_cast<std::uint8_t>(random.Next()));
  } else if (!other.empty()) {  // the rest of another input
    const std::size_t from = Place(random, other.size());
    input.resize(at);
    input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
  }
  if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t mutation_count = 0;
  if (argc != 3 ||
      std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), mutation_count).ec != std::errc()) {
    std::fprintf(stderr, "usage: %s FOLDER MUTATIONS\n", argv[0]);
    return 2;
  }
  const std::vector<Input> corpus = ReadCorpus(argv[1]);
  if (corpus.empty()) {
    std::fprintf(stderr, "no files in %s: a corpus that is not there finds nothing\n", argv[1]);
    return 1;
  }
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal_number, PrintInputAndDie);
  }
  const GuardedMemory memory;
  for (const Input& input : corpus) memory.Run(input);
  phub::SeededRandom random(mutation_count);
  for (std::size_t i = 0; i < mutation_count; ++i) {
    Input input = corpus[Place(random, corpus.size())];
    for (std::uint64_t left = 1 + random.Below(4); left > 0; --left) {
      MutateOnce(input, corpus[Place(random, corpus.size())], random);
    }
    memory.Run(input);
  }
  std::printf("files=%zu mutations=%zu\n", corpus.size(), mutation_count);
  return 0;
}
