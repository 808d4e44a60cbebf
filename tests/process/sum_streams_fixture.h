// Jobs that a real daemon and a real phub-aggregator serve together, and the same jobs over tcp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "phub/client.h"
#include "tests/process/aggregator_process.h"
#include "tests/process/daemon_process.h"
#include "tests/process/join_all.h"

namespace phub::process {

inline constexpr std::uint32_t kRanks = 3;
inline constexpr std::uint32_t kChunkElements = 1024;  // two whole blocks of 350, and one of 324
inline constexpr std::uint64_t kSizes[] = {5000, 300, 2048};
inline constexpr std::uint64_t kElements = 5000 + 300 + 2048;
inline constexpr std::uint64_t kBlocks = 5 * 3 + 1 + 2 * 3;  // of 350 elements, in chunks of 1024

inline JobOptions Options(const std::string& job,
                          TransportChoice transport = TransportChoice::kTcp) {
  return {.job = job,
          .world_size = kRanks,
          .chunk_bytes = kChunkElements * sizeof(float),
          .transport = transport,
          .sum = Sum::kFixed};
}

// All ranks of a job. Gradients depend on the parameters, so an error stays.
class Training {
 public:
  Training(const std::string& endpoint, const JobOptions& options,
           std::vector<std::uint64_t> sizes = {std::begin(kSizes), std::end(kSizes)})
      : sizes_(std::move(sizes)), jobs_(JoinAll(endpoint, options)), keys_(jobs_.size()) {
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < jobs_.size(); ++rank)
      threads.emplace_back([this, rank] { AddKeys(rank); });
    for (std::thread& thread : threads) thread.join();
  }
  void Begin() {
    for (std::size_t rank = 0; rank < keys_.size(); ++rank) {
      for (Key& key : keys_[rank]) {
        const auto parameters = key.parameters<float>();
        const auto gradients = key.gradients<float>();
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          const auto x = static_cast<float>((i * 7 + rank * 13 + iteration_ * 3) % 101);
          gradients[i] =
              parameters[i] * 0.5f + std::ldexp(x - 50.0f, static_cast<int>(i % 23) - 20);
        }
        pushed_.push_back(key.PushPull());
      }
    }
    ++iteration_;
  }
  void End() {
    for (Handle& handle : pushed_) {
      const Status status = handle.Wait();
      ASSERT_TRUE(status.ok()) << ToString(status);
    }
    pushed_.clear();
  }
  void Train(int iterations) {
    for (int i = 0; i < iterations; ++i) {
      Begin();
      ASSERT_NO_FATAL_FAILURE(End());
    }
  }
  std::vector<float> Parameters(std::size_t rank) const {
    std::vector<float> all;
    for (const Key& key : keys_[rank]) {
      const auto values = key.parameters<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  void AddKeys(std::size_t rank) {
    for (std::size_t k = 0; k < sizes_.size(); ++k) {
      auto key = jobs_[rank].AddKey("key" + std::to_string(k), f32, sizes_[k],
                                    Adam{.learning_rate = 0.01});
      ASSERT_TRUE(key.ok()) << ToString(key.status());
      keys_[rank].push_back(*std::move(key));
    }
  }

  std::vector<std::uint64_t> sizes_;
  std::vector<Job> jobs_;
  std::vector<std::vector<Key>> keys_;
  std::vector<Handle> pushed_;
  std::uint64_t iteration_ = 0;
};

class SumStreams : public ::testing::Test {
 protected:
  explicit SumStreams(bool two_aggregators = false)
      : second_(two_aggregators ? std::make_unique<AggregatorProcess>() : nullptr),
        daemon_({"--cores", "2", "--pin", "off", "--sum-aggregator",
                 aggregator_.control() + (two_aggregators ? "," + second_->control() : "")}) {}

  std::string Way(const std::string& job) { return daemon_.Ask({"job", "get", job}).output; }
  // The last answer of `phubctl job get`, with the text unless that takes too long.
  std::string AwaitWay(const std::string& job, const std::string& text) {
    std::string shown = Way(job);
    for (int i = 0; i < 300 && shown.find(text) == std::string::npos; ++i) {
      Sleep(100 * kMillisecond);
      shown = Way(job);
    }
    return shown;
  }
  // Waits until a stream is open on every core loop.
  void AwaitStreams(const std::string& job) {
    std::string shown;
    const auto open = [&] {
      shown = Way(job);
      return shown.find("aggregator 127.0.0.1:") != std::string::npos &&
             shown.find("tcp: ") == std::string::npos;
    };
    for (int i = 0; i < 300 && !open(); ++i) Sleep(100 * kMillisecond);
    EXPECT_TRUE(open()) << shown;
  }
  std::uint64_t Stat(const std::string& name) {
    const std::string text = daemon_.Ask({"stats"}).output;  // counters of 0 are not shown
    std::uint64_t sum = 0;
    for (std::size_t line = text.find(name); line != std::string::npos;
         line = text.find(name, line + 1)) {
      const std::size_t end = text.find('\n', line);
      sum += std::stoull(text.substr(text.rfind(' ', end) + 1));
    }
    return sum;
  }

  AggregatorProcess aggregator_;
  std::unique_ptr<AggregatorProcess> second_;  // null unless there are two
  DaemonProcess daemon_;
  DaemonProcess plain_{{"--cores", "1", "--pin", "off"}};
};

}  // namespace phub::process
