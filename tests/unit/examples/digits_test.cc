#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include "client/examples/digits/data.h"
#include "client/examples/digits/model.h"
#include "client/examples/digits/parameter_file.h"
#include "client/examples/digits/training.h"

namespace digits {
namespace {

DataSet Load() {
  std::string error;
  std::optional<DataSet> set = LoadDigits(DIGITS_DATA, error);
  EXPECT_TRUE(set.has_value()) << error;
  return set.value_or(DataSet{});
}

class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name)
      : path_(::testing::TempDir() + "phub-digits-" + std::to_string(getpid()) + "-" + name) {}
  ~ScratchFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }
  void Write(const std::string& text) const { std::ofstream(path_, std::ios::binary) << text; }

 private:
  std::string path_;
};

std::string Line(const std::string& pixel, const std::string& label) {
  std::string line;
  for (std::size_t i = 0; i < kPixels; ++i) line += pixel + ",";
  return line + label + "\n";
}

TEST(DigitsData, EveryDigitIsInExactlyOneSplit) {
  const DataSet set = Load();
  EXPECT_EQ(set.train.size(), 1438u);
  EXPECT_EQ(set.test.size(), 359u);
  std::array<std::size_t, kClasses> of_class{};
  for (const Digit& digit : set.train) ++of_class.at(digit.label);
  for (const Digit& digit : set.test) ++of_class.at(digit.label);
  // The published counts of this data set.
  EXPECT_EQ(of_class,
            (std::array<std::size_t, kClasses>{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}));
}

TEST(DigitsData, BadLinesAreNamed) {
  const ScratchFile file("lines.csv");
  std::string good;
  for (int i = 0; i < 5; ++i) good += Line("16", "9");
  std::string error;
  file.Write(good);
  ASSERT_TRUE(LoadDigits(file.path(), error).has_value()) << error;
  const std::string bad_lines[] = {Line("17", "1"),       Line("3", "10"), Line("-1", "0"),
                                   Line("x", "0"),        Line("3", ""),   "\n",
                                   Line("3", "1,2"),      "1,2,3\n",       Line("1.5", "3"),
                                   std::string(5000, '1')};
  for (const std::string& bad : bad_lines) {
    file.Write(good + bad + good);
    EXPECT_FALSE(LoadDigits(file.path(), error).has_value()) << bad;
    EXPECT_NE(error.find("line 6"), std::string::npos) << error;
  }
  EXPECT_FALSE(LoadDigits(file.path() + ".missing", error).has_value());
}

TEST(DigitsData, DamagedArchiveIsRefused) {
  std::ifstream source(DIGITS_DATA, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(source)), {});
  const ScratchFile file("short.csv.gz");
  file.Write(bytes.substr(0, bytes.size() / 2));
  std::string error;
  EXPECT_FALSE(LoadDigits(file.path(), error).has_value());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
  file.Write(bytes);
  EXPECT_FALSE(LoadDigits(file.path(), error).has_value());
}

TEST(DigitsDealer, RanksShareAPassWithoutOverlap) {
  const DataSet set = Load();
  constexpr std::size_t kRanks = 4;
  constexpr std::size_t kBatch = 32;
  std::array<Dealer, kRanks> dealers{
      Dealer(set.train, kRanks, kBatch), Dealer(set.train, kRanks, kBatch),
      Dealer(set.train, kRanks, kBatch), Dealer(set.train, kRanks, kBatch)};
  const std::size_t iterations_per_pass = set.train.size() / (kRanks * kBatch);
  std::vector<const Digit*> first_pass;
  for (std::size_t pass = 0; pass < 3; ++pass) {
    std::set<const Digit*> seen;
    std::vector<const Digit*> order;
    for (std::size_t i = 0; i < iterations_per_pass; ++i) {
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        const auto& batch = dealers[rank].Batch(pass * iterations_per_pass + i, rank);
        seen.insert(batch.begin(), batch.end());
        order.insert(order.end(), batch.begin(), batch.end());
      }
    }
    EXPECT_EQ(seen.size(), iterations_per_pass * kRanks * kBatch);
    if (pass == 0) first_pass = order;
    EXPECT_EQ(pass == 0, order == first_pass);
  }
}

// Compares the gradient of some parameters of each tensor with finite differences of the loss.
TEST(DigitsModel, GradientsAgreeWithFiniteDifferences) {
  const DataSet set = Load();
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradient_values;
  std::vector<std::vector<float>> unused_values;
  Parameters parameters;
  Gradients gradients;
  Gradients unused;
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    values.push_back(InitialValues(t));
    gradient_values.emplace_back(TensorSize(t));
    unused_values.emplace_back(TensorSize(t));
  }
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    parameters[t] = values[t];
    gradients[t] = gradient_values[t];
    unused[t] = unused_values[t];
  }
  Dealer dealer(set.train, 1, 32);
  const auto& batch = dealer.Batch(0, 0);
  Network network(batch.size());
  network.ComputeGradients(parameters, batch, gradients, [](std::size_t) {});
  for (std::size_t t = 0; t < kTensorCount; ++t) {
    const auto largest =
        std::max_element(gradient_values[t].begin(), gradient_values[t].end(),
                         [](float a, float b) { return std::abs(a) < std::abs(b); });
    const auto at = static_cast<std::size_t>(largest - gradient_values[t].begin());
    const auto loss_at = [&](float value) {
      values[t][at] = value;
      return network.ComputeGradients(parameters, batch, unused, [](std::size_t) {}).loss_sum;
    };
    const float before = values[t][at];
    constexpr float kStep = 1e-2f;
    const double slope = (loss_at(before + kStep) - loss_at(before - kStep)) /
                         (2.0 * static_cast<double>(kStep) * static_cast<double>(batch.size()));
    values[t][at] = before;
    EXPECT_NEAR(slope, static_cast<double>(*largest), 0.03 * std::abs(slope)) << TensorName(t);
  }
}

// When a layer is reported as done, destroy its parameters at once. Expect: the same gradients as
// in a run that did not touch them.
TEST(DigitsModel, LayersThatAreDoneAreNotReadAgain) {
  const DataSet set = Load();
  Dealer dealer(set.train, 1, 32);
  const auto& batch = dealer.Batch(0, 0);
  Network network(batch.size());
  const auto run = [&](bool destroy) {
    std::vector<std::vector<float>> values;
    std::vector<std::vector<float>> results;
    for (std::size_t t = 0; t < kTensorCount; ++t) {
      values.push_back(InitialValues(t));
      results.emplace_back(TensorSize(t));
    }
    Parameters parameters;
    Gradients gradients;
    for (std::size_t t = 0; t < kTensorCount; ++t) {
      parameters[t] = values[t];
      gradients[t] = results[t];
    }
    std::vector<std::size_t> done;
    std::vector<std::vector<float>> when_done(kTensorCount);
    network.ComputeGradients(parameters, batch, gradients, [&](std::size_t layer) {
      done.push_back(layer);
      for (const std::size_t t : {WeightsOf(layer), BiasesOf(layer)}) {
        when_done[t] = results[t];
        if (destroy)
          std::fill(values[t].begin(), values[t].end(), std::numeric_limits<float>::quiet_NaN());
      }
    });
    EXPECT_EQ(done, (std::vector<std::size_t>{2, 1, 0}));
    EXPECT_EQ(FirstDifference(when_done, results), "");
    return results;
  };
  EXPECT_EQ(FirstDifference(run(false), run(true)), "");
}

TEST(DigitsSerial, LearnsAndRepeatsItselfBitForBit) {
  const DataSet set = Load();
  Settings settings;
  settings.iterations = 120;
  settings.quiet = true;
  const Trained first = TrainSerially(settings, set);
  EXPECT_GE(first.correct * 100, set.test.size() * 95);
  const Trained second = TrainSerially(settings, set);
  EXPECT_EQ(FirstDifference(first.tensors, second.tensors), "");
  settings.world_size = 2;  // the same digits per iteration, summed in another order
  settings.batch_size = 64;
  const Trained other = TrainSerially(settings, set);
  EXPECT_NE(FirstDifference(first.tensors, other.tensors), "");
}

TEST(DigitsParameterFile, KeepsEveryBitAndNamesTheFirstDifference) {
  std::vector<std::vector<float>> tensors;
  for (std::size_t t = 0; t < kTensorCount; ++t) tensors.push_back(InitialValues(t));
  tensors[0][3] = std::numeric_limits<float>::quiet_NaN();
  tensors[2][17] = 0.0f;
  const ScratchFile file("parameters");
  ASSERT_EQ(SaveParameters(file.path(), tensors), "");
  std::string error;
  const auto loaded = LoadParameters(file.path(), error);
  ASSERT_TRUE(loaded.has_value()) << error;
  EXPECT_EQ(FirstDifference(tensors, *loaded), "");
  tensors[2][17] = -0.0f;
  EXPECT_EQ(FirstDifference(tensors, *loaded),
            "fc2.weight[17]: -0 (0x80000000) against 0 (0x00000000)");

  std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
  EXPECT_FALSE(LoadParameters(file.path(), error).has_value());
  EXPECT_NE(SaveParameters("/nowhere/at/all", tensors), "");
}

}  // namespace
}  // namespace digits
