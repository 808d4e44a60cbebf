// A loaded state equals the saved one: all types, odd sizes, pieces in any order. Also the writer's
// refusals.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "common/base/ids.h"
#include "common/checkpoint/received_ranges.h"
#include "tests/unit/checkpoint/checkpoint_support.h"

namespace phub::checkpoint {
namespace {

using numeric::ElementType;
using ::testing::Test;

// A key of each type, each of another odd size, with every wire type that it may have.
SavedValues LargeCheckpoint() {
  SavedValues small = SmallCheckpoint(41, 1);
  CheckpointDescription description = small.description;
  std::uint64_t element_count = 1;
  for (std::uint8_t i = 1; i <= numeric::kElementTypeMax; ++i) {
    for (std::uint8_t wire = 1; wire <= numeric::kElementTypeMax; ++wire) {
      SavedKey key;
      key.type = static_cast<ElementType>(i);
      key.parameter_type = static_cast<ElementType>(wire);
      if (!numeric::IsWireTypeOf(key.parameter_type, key.type)) continue;
      key.gradient_type = key.type;
      key.name = "key/\"" + std::string(numeric::ToString(key.type)) + "\" \u00e9\\ " +
                 numeric::ToString(key.parameter_type);
      key.element_count = element_count;
      element_count = element_count * 3 + 2;
      key.operation = "sum";
      key.optimizer = "adam";
      key.hyper_parameters = {{"learning_rate", 1e-3},
                              {"beta1", 0.1 + 0.2},
                              {"beta2", std::nextafter(1.0, 0.0)},
                              {"epsilon", std::numeric_limits<double>::denorm_min()},
                              {"weight_decay", -0.0},
                              {"clip_value", std::numeric_limits<double>::max()}};
      key.optimizer_tensors = {{"first_moment", numeric::AccumulationType(key.type)},
                               {"second_moment", ElementType::kF64}};
      key.optimizer_steps = std::numeric_limits<std::uint64_t>::max();
      key.record_version = std::numeric_limits<std::uint32_t>::max();
      key.initialized = true;
      description.keys.push_back(key);
    }
  }
  return WithContents(std::move(description), 7);
}

TEST(SavedState, EveryTypeComesBackBitForBit) {
  const SavedValues state = LargeCheckpoint();
  ASSERT_EQ(state.description.keys.size(), 2u + 7u + 2u);
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), state), absl::OkStatus());
  const absl::StatusOr<SavedValues> loaded = Load(folder.path());
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(*loaded, state);
  const double weight_decay = loaded->description.keys.back().hyper_parameters.at("weight_decay");
  EXPECT_TRUE(std::signbit(weight_decay));  // == does not distinguish zeros
}

TEST(SavedState, TensorsBeginAtMultiplesOfTheirElements) {
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), LargeCheckpoint()), absl::OkStatus());
  const std::string file = ReadWhole(DataPathOf(folder.path()));
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  ASSERT_EQ((8 + length) % 8, 0u);
  const auto header =
      ParseHeader(std::string_view(file).substr(8, length), file.size() - 8 - length);
  ASSERT_EQ(header.status(), absl::OkStatus());
  for (const PlacedTensor& tensor : header->tensors)
    EXPECT_EQ(tensor.begin % numeric::ElementBytes(tensor.type), 0u) << tensor.name;
}

TEST(SavedState, PiecesComeInAnyOrderFromSeveralThreads) {
  const SavedValues state = LargeCheckpoint();
  struct Piece {
    std::string tensor;
    std::uint64_t element_offset;
    std::span<const std::byte> bytes;
  };
  std::vector<Piece> pieces;
  SeededRandom random(3);
  for (const TensorDescription& tensor : TensorsOf(state.description)) {
    const std::span<const std::byte> bytes = state.contents.at(tensor.name);
    const std::uint64_t element_bytes = numeric::ElementBytes(tensor.type);
    for (std::uint64_t at = 0; at < tensor.element_count;) {
      const std::uint64_t count = std::min(1 + random.Below(5000), tensor.element_count - at);
      pieces.push_back({tensor.name, at, bytes.subspan(at * element_bytes, count * element_bytes)});
      at += count;
    }
  }
  for (std::size_t i = pieces.size(); i > 1; --i) std::swap(pieces[i - 1], pieces[random.Below(i)]);
  const FolderInMemory folder;
  auto writer = CheckpointWriter::Create(folder.path(), state.description);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  std::vector<std::thread> threads;
  constexpr std::size_t kThreads = 3;
  std::vector<absl::Status> statuses(kThreads);
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = t; i < pieces.size() && statuses[t].ok(); i += kThreads)
        statuses[t] = (*writer)->Write(pieces[i].tensor, pieces[i].element_offset, pieces[i].bytes);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) ASSERT_EQ(status, absl::OkStatus());
  ASSERT_EQ((*writer)->Commit(), absl::OkStatus());
  const absl::StatusOr<SavedValues> loaded = Load(folder.path());
  ASSERT_EQ(loaded.status(), absl::OkStatus());
  EXPECT_EQ(*loaded, state);
}

TEST(SavedState, PartsOfATensorCanBeRead) {
  const SavedValues state = LargeCheckpoint();
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), state), absl::OkStatus());
  const auto reader = CheckpointReader::Open(folder.path());
  ASSERT_EQ(reader.status(), absl::OkStatus());
  for (const TensorDescription& tensor : TensorsOf(state.description)) {
    const std::uint64_t element_bytes = numeric::ElementBytes(tensor.type);
    const std::uint64_t from = tensor.element_count / 3;
    std::vector<std::byte> part((tensor.element_count - from) * element_bytes);
    ASSERT_EQ((*reader)->Read(tensor.name, from, part), absl::OkStatus());
    EXPECT_TRUE(std::equal(part.begin(), part.end(),
                           state.contents.at(tensor.name).begin() +
                               static_cast<std::ptrdiff_t>(from * element_bytes)));
    part.resize(element_bytes);
    EXPECT_FALSE((*reader)->Read(tensor.name, tensor.element_count, part).ok());
    EXPECT_FALSE((*reader)->Read(tensor.name, UINT64_MAX, part).ok());
    if (element_bytes == 1) continue;
    EXPECT_FALSE((*reader)->Read(tensor.name, 0, std::span(part).first(1)).ok());
  }
  EXPECT_FALSE((*reader)->Read("nobody", 0, {}).ok());
}

TEST(SavedState, AStateOfNoTensorsIsAState) {
  SavedValues state = SmallCheckpoint(0, 1);
  state.description.keys.erase(state.description.keys.begin());
  state.contents.clear();
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), state), absl::OkStatus());
  EXPECT_EQ(*Load(folder.path()), state);
}

TEST(SavedState, ANewStateReplacesTheOldAndNothingElse) {
  const FolderInMemory folder;
  WriteWhole(folder.path() + "/notes.txt", "mine");
  WriteWhole(folder.path() + "/state-1-00000000.safetensors", "mine");
  WriteWhole(folder.path() + "/state-1-0000000g.safetensors.tmp", "mine");
  std::filesystem::create_directory(folder.path() + "/archive");
  for (std::uint64_t iteration = 1; iteration <= 3; ++iteration) {
    const SavedValues state = SmallCheckpoint(iteration, iteration);
    ASSERT_EQ(Save(folder.path(), state), absl::OkStatus());
    EXPECT_EQ(*Load(folder.path()), state);
    EXPECT_EQ(NamesIn(folder.path()).size(), 6u);
  }
  EXPECT_EQ(ReadWhole(folder.path() + "/state-1-00000000.safetensors"), "mine");
}

TEST(SavedState, AReaderKeepsItsStateWhenANewerOneComes) {
  const FolderInMemory folder;
  const SavedValues old_state = SmallCheckpoint(1, 1);
  ASSERT_EQ(Save(folder.path(), old_state), absl::OkStatus());
  const auto reader = CheckpointReader::Open(folder.path());
  ASSERT_EQ(reader.status(), absl::OkStatus());
  ASSERT_EQ(Save(folder.path(), SmallCheckpoint(2, 2)), absl::OkStatus());
  for (const auto& [name, expected] : old_state.contents) {
    std::vector<std::byte> bytes(expected.size());
    ASSERT_EQ((*reader)->Read(name, 0, bytes), absl::OkStatus());
    EXPECT_EQ(bytes, expected);
  }
}

TEST(SavedState, FoldersAreMadeOneLevelDeep) {
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path() + "/new/", SmallCheckpoint(1, 1)), absl::OkStatus());
  EXPECT_TRUE(Load(folder.path() + "/new").ok());
  const absl::Status status = Save(folder.path() + "/a/b", SmallCheckpoint(1, 1));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_NE(TextOf(status).find(folder.path() + "/a/b: cannot create the folder: No such file"),
            std::string::npos)
      << status;
}

TEST(CheckpointWriter, LeavesNothingWhenItDoesNotCommit) {
  const FolderInMemory folder;
  {
    auto writer = CheckpointWriter::Create(folder.path(), SmallCheckpoint(1, 1).description);
    ASSERT_EQ(writer.status(), absl::OkStatus());
    EXPECT_EQ(NamesIn(folder.path()).size(), 1u);
  }
  EXPECT_TRUE(NamesIn(folder.path()).empty());
}

TEST(CheckpointWriter, RefusesOverlapsGapsAndStrangers) {
  const SavedValues state = SmallCheckpoint(1, 1);
  const std::string name = MasterTensor("fc1.weight");
  const std::span<const std::byte> bytes = state.contents.at(name);
  const FolderInMemory folder;
  const auto refused = [&](auto use, std::string_view expected) {
    auto writer = CheckpointWriter::Create(folder.path(), state.description);
    ASSERT_EQ(writer.status(), absl::OkStatus());
    const absl::Status status = use(**writer);
    EXPECT_NE(TextOf(status).find(expected), std::string::npos) << status;
    // Expect: an error is final.
    EXPECT_EQ(TextOf((*writer)->Commit()), TextOf(status));
    EXPECT_EQ(TextOf((*writer)->Write(name, 0, {})), TextOf(status));
  };
  refused(
      [&](CheckpointWriter& writer) {
        EXPECT_TRUE(writer.Write(name, 2, bytes.subspan(8, 8)).ok());
        return writer.Write(name, 0, bytes.first(12));
      },
      "elements 0 to 3 overlap elements 2 to 4");
  refused(
      [&](CheckpointWriter& writer) {
        EXPECT_TRUE(writer.Write(name, 0, bytes.first(12)).ok());
        return writer.Write(name, 2, bytes.subspan(8));
      },
      "elements 2 to 9 overlap elements 0 to 3");
  refused([&](CheckpointWriter& writer) { return writer.Write("fc2", 0, bytes); },
          "no tensor of this name");
  refused([&](CheckpointWriter& writer) { return writer.Write(name, 1, bytes); },
          "exceed the tensor's 9");
  refused([&](CheckpointWriter& writer) { return writer.Write(name, UINT64_MAX, bytes.first(4)); },
          "exceed the tensor's 9");
  refused([&](CheckpointWriter& writer) { return writer.Write(name, 0, bytes.first(3)); },
          "not a whole number of f32 elements");
  refused(
      [&](CheckpointWriter& writer) {
        EXPECT_TRUE(WriteAll(writer, {{}, {{name, {bytes.begin(), bytes.begin() + 8}}}}).ok());
        EXPECT_TRUE(writer.Write(name, 5, bytes.subspan(20)).ok());
        return writer.Commit();
      },
      "elements 2 to 5 of 9 are missing");
  EXPECT_TRUE(NamesIn(folder.path()).empty());
}

TEST(CheckpointWriter, CommitsOnce) {
  const SavedValues state = SmallCheckpoint(1, 1);
  const FolderInMemory folder;
  auto writer = CheckpointWriter::Create(folder.path(), state.description);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  ASSERT_EQ(WriteAll(**writer, state), absl::OkStatus());
  ASSERT_EQ((*writer)->Commit(), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Commit()));
  writer->reset();
  EXPECT_EQ(*Load(folder.path()), state);
}

TEST(CheckpointWriter, OnlyOneSavesIntoAFolder) {
  const FolderInMemory folder;
  auto first = CheckpointWriter::Create(folder.path(), SmallCheckpoint(1, 1).description);
  ASSERT_EQ(first.status(), absl::OkStatus());
  const auto second = CheckpointWriter::Create(folder.path(), SmallCheckpoint(2, 2).description);
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  first->reset();
  EXPECT_EQ(Save(folder.path(), SmallCheckpoint(2, 2)), absl::OkStatus());
}

TEST(CheckpointWriter, LeavesForeignAndDamagedManifestsAlone) {
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), SmallCheckpoint(1, 1)), absl::OkStatus());
  std::string damaged = ReadWhole(folder.path() + "/manifest.json");
  damaged[damaged.find("digits")] = 'w';
  for (const std::string& text : {std::string("{\"name\": \"My App\"}"), damaged, std::string()}) {
    WriteWhole(folder.path() + "/manifest.json", text);
    const std::vector<std::string> before = NamesIn(folder.path());
    EXPECT_TRUE(absl::IsFailedPrecondition(Save(folder.path(), SmallCheckpoint(2, 2))));
    EXPECT_EQ(ReadWhole(folder.path() + "/manifest.json"), text);
    EXPECT_EQ(NamesIn(folder.path()), before);
  }
}

TEST(CheckpointDescription, WhatCannotBeSavedIsRefusedByName) {
  const auto refused = [](auto change) {
    CheckpointDescription description = SmallCheckpoint(1, 1).description;
    EXPECT_EQ(CheckDescription(description), absl::OkStatus());
    change(description);
    const FolderInMemory folder;
    const auto writer = CheckpointWriter::Create(folder.path(), description);
    EXPECT_TRUE(absl::IsInvalidArgument(writer.status())) << writer.status();
    EXPECT_TRUE(NamesIn(folder.path()).empty());
  };
  refused([](auto& d) { d.job = ""; });
  refused([](auto& d) { d.job = "caf\xe9"; });
  refused([](auto& d) { d.world_size = 0; });
  refused([](auto& d) { d.world_size = kRanksMax + 1; });
  refused([](auto& d) { d.phub_version = ""; });
  refused([](auto& d) { d.daemons[1] = "a\nb"; });
  refused([](auto& d) { d.keys[0].name = "phub:master/a"; });
  refused([](auto& d) { d.keys[0].name = "__metadata__"; });
  refused([](auto& d) { d.keys[0].name = std::string(256, 'a'); });
  refused([](auto& d) { d.keys[1].name = d.keys[0].name; });
  refused([](auto& d) { d.keys[0].element_count = 0; });
  refused([](auto& d) { d.keys[0].element_count = UINT64_MAX / 2; });
  refused([](auto& d) { d.keys[0].gradient_type = ElementType::kI32; });
  refused([](auto& d) { d.keys[0].parameter_type = ElementType::kF64; });
  refused([](auto& d) { d.keys[0].hyper_parameters["momentum"] = NAN; });
  refused([](auto& d) { d.keys[0].hyper_parameters["Momentum"] = 1; });
  refused([](auto& d) { d.keys[0].optimizer = ""; });
  refused([](auto& d) { d.keys[0].operation = "a b"; });
  refused([](auto& d) { d.keys[0].optimizer_tensors.push_back({"a/b", ElementType::kF32}); });
  refused([](auto& d) { d.keys[0].optimizer_tensors.push_back({"momentum", ElementType::kF32}); });
}

TEST(ReceivedRanges, AgreeWithABitmap) {
  SeededRandom random(11);
  for (int trial = 0; trial < 300; ++trial) {
    const std::uint64_t count = 1 + random.Below(40);
    std::vector<bool> bitmap(count, false);
    ReceivedRanges ranges;
    for (int i = 0; i < 60; ++i) {
      const std::uint64_t begin = random.Below(count + 1);
      const std::uint64_t end = begin + random.Below(std::min<std::uint64_t>(6, count - begin + 1));
      bool free = true;
      for (std::uint64_t at = begin; at < end; ++at) free = free && !bitmap[at];
      EXPECT_EQ(!ranges.Add({begin, end}).has_value(), free);
      for (std::uint64_t at = begin; at < end && free; ++at) bitmap[at] = true;
      const auto hole = std::find(bitmap.begin(), bitmap.end(), false);
      const auto gap = ranges.FirstGap(count);
      ASSERT_EQ(gap.has_value(), hole != bitmap.end());
      if (!gap) continue;
      EXPECT_EQ(gap->begin, static_cast<std::uint64_t>(hole - bitmap.begin()));
      EXPECT_EQ(gap->end,
                static_cast<std::uint64_t>(std::find(hole, bitmap.end(), true) - bitmap.begin()));
    }
  }
}

}  // namespace
}  // namespace phub::checkpoint
