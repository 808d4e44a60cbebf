// Damaged and foreign states: every bit, every length, and unexpected kinds of files.
#include <sys/stat.h>
#include <unistd.h>

#include "common/checkpoint/metadata.h"
#include "tests/unit/checkpoint/checkpoint_support.h"

namespace phub::checkpoint {
namespace {

class DamagedCheckpoint : public ::testing::Test {
 protected:
  DamagedCheckpoint() {
    PHUB_CHECK(Save(folder_.path(), state_).ok());
    manifest_path_ = folder_.path() + "/" + kManifestFile;
    data_path_ = DataPathOf(folder_.path());
    manifest_ = ReadWhole(manifest_path_);
    data_ = ReadWhole(data_path_);
  }

  // Expects a refusal that names the file. Returns the text.
  std::string RefusalOf(const std::string& path) {
    const auto reader = CheckpointReader::Open(folder_.path());
    EXPECT_FALSE(reader.ok());
    if (reader.ok()) return "";
    EXPECT_TRUE(TextOf(reader.status()).starts_with(path + ": ")) << reader.status();
    return TextOf(reader.status());
  }
  bool Refused(const std::string& path, std::string_view why) {
    const std::string text = RefusalOf(path);
    EXPECT_NE(text.find(why), std::string::npos) << text;
    return text.find(why) != std::string::npos;
  }
  // Writes a manifest with correct checksums for a data file.
  void Vouch(const std::string& data, Manifest manifest) {
    manifest.data_bytes = data.size();
    manifest.data_sha256 = Sha256Of(data);
    WriteWhole(data_path_, data);
    WriteWhole(manifest_path_, ManifestToJson(manifest));
  }

  const SavedValues state_ = SmallCheckpoint(5, 1);
  FolderInMemory folder_;
  std::string manifest_path_;
  std::string data_path_;
  std::string manifest_;
  std::string data_;
};

TEST_F(DamagedCheckpoint, EveryFlippedBitOfTheDataIsFound) {
  std::string damaged = data_;
  for (std::size_t bit = 0; bit < 8 * data_.size(); ++bit) {
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    WriteWhole(data_path_, damaged);
    ASSERT_NE(RefusalOf(data_path_), "") << "bit " << bit;
    damaged[bit / 8] = data_[bit / 8];
  }
  WriteWhole(data_path_, data_);
  EXPECT_EQ(*Load(folder_.path()), state_);
}

TEST_F(DamagedCheckpoint, EveryFlippedBitOfTheManifestIsFound) {
  const absl::StatusOr<Manifest> expected = ParseManifest(manifest_);
  std::string damaged = manifest_;
  for (std::size_t bit = 0; bit < 8 * manifest_.size(); ++bit) {
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const absl::StatusOr<Manifest> manifest = ParseManifest(damaged);
    if (manifest.ok()) {
      ASSERT_EQ(*manifest, *expected) << "bit " << bit;
    } else if (bit % 5 == 0) {  // through the file for some bits: the reader adds the path
      WriteWhole(manifest_path_, damaged);
      ASSERT_NE(RefusalOf(manifest_path_), "") << "bit " << bit;
    }
    damaged[bit / 8] = manifest_[bit / 8];
  }
}

TEST_F(DamagedCheckpoint, EveryTruncationIsFound) {
  for (std::size_t length = 0; length < data_.size(); ++length) {
    WriteWhole(data_path_, std::string_view(data_).substr(0, length));
    ASSERT_TRUE(Refused(data_path_, std::to_string(length) + " bytes")) << length;
  }
  WriteWhole(data_path_, data_ + '\0');
  EXPECT_TRUE(Refused(data_path_, "were saved"));
  WriteWhole(data_path_, data_);
  // Every byte except the newline at the end matters.
  for (std::size_t length = 0; length + 1 < manifest_.size(); ++length) {
    WriteWhole(manifest_path_, std::string_view(manifest_).substr(0, length));
    ASSERT_TRUE(Refused(manifest_path_, "invalid JSON")) << length;
  }
}

TEST_F(DamagedCheckpoint, TruncationsThatAManifestVouchesForAreFoundToo) {
  const Manifest manifest = ManifestOf(folder_.path());
  for (std::size_t length = 0; length < data_.size(); ++length) {
    Vouch(data_.substr(0, length), manifest);
    ASSERT_NE(RefusalOf(data_path_), "") << length;
  }
}

TEST_F(DamagedCheckpoint, TheDamagedTensorIsNamedWithItsPlace) {
  std::string damaged = data_;
  damaged.back() = static_cast<char>(~damaged.back());
  WriteWhole(data_path_, damaged);
  // The last 18 bytes are the parameters: nine of bf16.
  EXPECT_TRUE(Refused(data_path_, "tensor \"fc1.weight\", bytes " +
                                      std::to_string(data_.size() - 18) + " to " +
                                      std::to_string(data_.size())));
  damaged = data_;
  damaged[data_.find("digits") + 1] = 'o';
  WriteWhole(data_path_, damaged);
  EXPECT_TRUE(Refused(data_path_, "does not match this file"));
  damaged = data_;
  damaged[data_.find("momentum") + 1] = 'a';
  WriteWhole(data_path_, damaged);
  EXPECT_NE(RefusalOf(data_path_), "");
}

TEST_F(DamagedCheckpoint, HeaderDamageThatKeepsTheMeaningIsFoundByTheChecksum) {
  std::string damaged = data_;
  const std::size_t at = damaged.find("0.9");  // the value of the momentum
  damaged[at + 2] = '8';
  WriteWhole(data_path_, damaged);
  EXPECT_TRUE(Refused(data_path_, "the header"));
}

TEST_F(DamagedCheckpoint, LayoutOfTheManifestIsFree) {
  std::string spaced;
  for (const char c : manifest_) {
    if (c == ' ') spaced += "\r\n\t ";
    spaced += c;
  }
  // Spaces in texts are not layout: "phub saved state" has two.
  const std::string format = "\"phub saved state\"";
  const std::size_t from = spaced.find("\"phub\r");
  ASSERT_NE(from, std::string::npos);
  spaced.replace(from, spaced.find("state\"", from) + 6 - from, format);
  WriteWhole(manifest_path_, spaced);
  EXPECT_EQ(*Load(folder_.path()), state_);
}

TEST_F(DamagedCheckpoint, HugeHeadersAreRefusedBeforeTheyAreRead) {
  for (const std::uint64_t length : {std::uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7,
                                     kHeaderBytesMax + 1, std::uint64_t{data_.size()} - 7}) {
    std::string huge = data_;
    for (std::size_t i = 0; i < 8; ++i) huge[i] = static_cast<char>(length >> (8 * i));
    Vouch(huge, ManifestOf(folder_.path()));
    EXPECT_TRUE(Refused(data_path_, "header: its length is " + std::to_string(length)));
  }
}

TEST_F(DamagedCheckpoint, SparseFilesOfAnySizeDoNotCostMemory) {
  Manifest manifest = ManifestOf(folder_.path());
  manifest.data_bytes = std::uint64_t{1} << 40;
  ASSERT_EQ(truncate(data_path_.c_str(), static_cast<off_t>(manifest.data_bytes)), 0);
  WriteWhole(manifest_path_, ManifestToJson(manifest));
  EXPECT_TRUE(Refused(data_path_, "bytes of data"));
  ASSERT_EQ(truncate(manifest_path_.c_str(), static_cast<off_t>(manifest.data_bytes)), 0);
  EXPECT_TRUE(Refused(manifest_path_, "at most"));
}

TEST_F(DamagedCheckpoint, ForeignFilesAreRefused) {
  const Manifest manifest = ManifestOf(folder_.path());
  SafetensorsHeader foreign = HeaderOf(state_.description);
  const std::string tensors(std::string_view(data_).substr(data_.size() - 90));
  foreign.metadata = {{"format", "pt"}};
  Vouch(EncodeHeader(foreign) + tensors, manifest);
  EXPECT_TRUE(Refused(data_path_, "this safetensors file is not a phub checkpoint"));
  foreign = HeaderOf(state_.description);
  foreign.metadata["phub.format_version"] = "7";
  Vouch(EncodeHeader(foreign) + tensors, manifest);
  EXPECT_TRUE(Refused(data_path_, "the format version is \"7\"; this phub reads version 1"));
  foreign = HeaderOf(state_.description);
  foreign.tensors[0].name = "stranger";
  Vouch(EncodeHeader(foreign) + tensors, manifest);
  EXPECT_TRUE(Refused(data_path_, "it is missing in the file"));
  Vouch("PK\x03\x04 a file of PyTorch's", manifest);
  EXPECT_TRUE(Refused(data_path_, "header: its length is"));

  WriteWhole(manifest_path_, "{\"name\": \"My App\", \"icons\": []}");
  EXPECT_TRUE(Refused(manifest_path_, "not the manifest of a phub checkpoint"));
  std::string newer = manifest_;
  newer.replace(newer.find("\"format_version\": 1"), 19, "\"format_version\": 2");
  WriteWhole(manifest_path_, newer);
  EXPECT_TRUE(Refused(manifest_path_, "the format version is 2; this phub reads version 1"));
}

TEST_F(DamagedCheckpoint, TheManifestOfAnotherFileIsRefused) {
  const FolderInMemory other;
  const SavedValues other_state = SmallCheckpoint(6, 2);
  ASSERT_EQ(Save(other.path(), other_state), absl::OkStatus());
  // The other state's manifest without its data; then with this state's data in its place.
  const std::string other_manifest = ReadWhole(other.path() + "/" + kManifestFile);
  WriteWhole(manifest_path_, other_manifest);
  const std::string other_data = folder_.path() + "/" + ManifestOf(other.path()).data_file;
  EXPECT_TRUE(Refused(other_data, "refers to this file, but it does not exist"));
  std::filesystem::copy(data_path_, other_data);
  EXPECT_NE(RefusalOf(other_data), "");
  // The same sizes and names, other bytes.
  WriteWhole(manifest_path_, manifest_);
  SavedValues changed = SmallCheckpoint(5, 99);
  const FolderInMemory third;
  ASSERT_EQ(Save(third.path(), changed), absl::OkStatus());
  WriteWhole(data_path_, ReadWhole(DataPathOf(third.path())));
  EXPECT_TRUE(Refused(data_path_, "is damaged: its checksum differs"));
}

TEST_F(DamagedCheckpoint, ManifestsMayNotNameOtherFiles) {
  const auto refused = [&](auto change, std::string_view why) {
    Manifest manifest = ManifestOf(folder_.path());
    change(manifest);
    const auto parsed = ParseManifest(ManifestToJson(manifest));
    EXPECT_FALSE(parsed.ok());
    EXPECT_NE(TextOf(parsed.status()).find(why), std::string::npos) << parsed.status();
  };
  refused([](auto& m) { m.data_file = "/etc/passwd"; }, "not a valid data file name");
  refused([](auto& m) { m.data_file = "../" + m.data_file; }, "not a valid data file name");
  refused([](auto& m) { m.replaces = "notes.txt"; }, "cannot be replaced");
  refused([](auto& m) { m.replaces = m.data_file; }, "cannot be replaced");
  refused([](auto& m) { m.data_sha256[3] = 'A'; }, "not a valid checksum");
  refused([](auto& m) { m.tensors[0].sha256.pop_back(); }, "not a valid checksum");
  refused([](auto& m) { m.description.world_size = 0; }, "must have 1 to 1024 workers");
}

TEST_F(DamagedCheckpoint, ChecksumsAreThoseOfTheTensors) {
  const auto refused = [&](auto change, std::string_view why) {
    Manifest manifest = *ParseManifest(manifest_);
    change(manifest);
    WriteWhole(manifest_path_, ManifestToJson(manifest));
    return Refused(data_path_, why);
  };
  EXPECT_TRUE(refused([](auto& m) { m.tensors.pop_back(); }, "has checksums of 2"));
  EXPECT_TRUE(refused([](auto& m) { m.tensors[1].name = "x"; }, "a checksum of \"x\""));
  EXPECT_TRUE(refused([](auto& m) { m.tensors[1].sha256 = Sha256Of(""); },
                      "is damaged: its checksum differs"));
  EXPECT_TRUE(refused([](auto& m) { m.data_sha256 = Sha256Of(""); }, "the header"));
  EXPECT_TRUE(refused([](auto& m) { m.description.iteration = 6; }, "does not match this file"));
  EXPECT_TRUE(refused([](auto& m) { m.description.daemons = {}; }, "does not match this file"));
}

TEST_F(DamagedCheckpoint, OnlyPlainFilesAreOpened) {
  const std::string target = folder_.path() + "/target";
  std::filesystem::rename(data_path_, target);
  std::filesystem::create_symlink(target, data_path_);
  EXPECT_TRUE(Refused(data_path_, "cannot open the file"));
  std::filesystem::remove(data_path_);
  ASSERT_EQ(mkfifo(data_path_.c_str(), 0600), 0);
  EXPECT_TRUE(Refused(data_path_, "this is not a regular file"));
  std::filesystem::remove(manifest_path_);
  ASSERT_EQ(mkfifo(manifest_path_.c_str(), 0600), 0);
  EXPECT_TRUE(Refused(manifest_path_, "this is not a regular file"));
}

TEST_F(DamagedCheckpoint, FoldersThatHoldNoStateAreSaidToBe) {
  EXPECT_TRUE(absl::IsNotFound(CheckpointReader::Open(folder_.path() + "/nowhere").status()));
  const absl::Status file = CheckpointReader::Open(data_path_).status();
  EXPECT_NE(TextOf(file).find("Not a directory"), std::string::npos) << file;
  EXPECT_NE(TextOf(Save(data_path_, state_)).find("Not a directory"), std::string::npos);
  std::filesystem::remove(manifest_path_);
  const absl::Status empty = CheckpointReader::Open(folder_.path()).status();
  EXPECT_TRUE(absl::IsNotFound(empty)) << empty;
  EXPECT_NE(TextOf(empty).find("this folder is not a checkpoint: it has no manifest.json"),
            std::string::npos)
      << empty;
}

TEST_F(DamagedCheckpoint, StructureAloneCanBeChecked) {
  std::string damaged = data_;
  damaged.back() = static_cast<char>(~damaged.back());
  WriteWhole(data_path_, damaged);
  const auto reader = CheckpointReader::Open(folder_.path(), CheckpointReader::Check::kStructure);
  ASSERT_EQ(reader.status(), absl::OkStatus());
  EXPECT_EQ((*reader)->description(), state_.description);
  std::vector<std::byte> bytes(2);
  EXPECT_DEATH((void)(*reader)->Read("fc1.weight", 0, bytes), "verified_");
  EXPECT_TRUE(absl::IsDataLoss((*reader)->Verify()));
  EXPECT_DEATH((void)(*reader)->Read("fc1.weight", 0, bytes), "verified_");
}

}  // namespace
}  // namespace phub::checkpoint
