// If a save dies, fails or loses power at any instant, the old checkpoint or the new one remains.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <functional>
#include <set>

#include "tests/unit/checkpoint/checkpoint_support.h"

namespace phub::checkpoint {
namespace {

// Counts the calls that change or read something, and can stop one of them.
class CountingOperations : public FileOperations {
 public:
  int CreateFile(int folder, const std::string& name, Descriptor& file) override {
    return Call("create", [&] { return FileOperations::CreateFile(folder, name, file); });
  }
  int Reserve(int file, std::uint64_t bytes) override {
    return Call("reserve", [&] { return FileOperations::Reserve(file, bytes); });
  }
  int WriteAt(int file, std::span<const std::byte> bytes, std::uint64_t offset) override {
    return Call("write", [&] {
      // In two halves, with an instant between them.
      const std::size_t half = bytes.size() / 2;
      if (const int error = FileOperations::WriteAt(file, bytes.first(half), offset)) return error;
      Between();
      return FileOperations::WriteAt(file, bytes.subspan(half), offset + half);
    });
  }
  int ReadAt(int file, std::span<std::byte> bytes, std::uint64_t offset) override {
    return Call("read", [&] { return FileOperations::ReadAt(file, bytes, offset); });
  }
  int Sync(int file) override {
    return Call("sync", [&] { return FileOperations::Sync(file); });
  }
  int Rename(int folder, const std::string& from, const std::string& to) override {
    return Call("rename", [&] { return FileOperations::Rename(folder, from, to); });
  }
  int Remove(int folder, const std::string& name) override {
    return Call("remove", [&] { return FileOperations::Remove(folder, name); });
  }

 protected:
  virtual int Call(const char* what, const std::function<int()>& call) = 0;
  virtual void Between() {}
};

// Kills its process at one instant: before, within or after a call.
class KillingOperations final : public CountingOperations {
 public:
  explicit KillingOperations(int instant) : left_(instant) {}

 private:
  int Call(const char* /*what*/, const std::function<int()>& call) override {
    Between();
    const int result = call();
    Between();
    return result;
  }
  void Between() override {
    if (left_-- == 0) raise(SIGKILL);
  }
  int left_;
};

class OldAndNew : public ::testing::Test {
 protected:
  // Returns true if the new checkpoint is there. Fails if neither is.
  bool IsNew(const std::string& folder) {
    const absl::StatusOr<SavedValues> loaded = Load(folder);
    EXPECT_EQ(loaded.status(), absl::OkStatus());
    if (!loaded.ok()) return false;
    EXPECT_TRUE(*loaded == old_ || *loaded == new_);
    return *loaded == new_;
  }
  const SavedValues old_ = SmallCheckpoint(1, 1);
  const SavedValues new_ = SmallCheckpoint(2, 2);
  const SavedValues next_ = SmallCheckpoint(3, 3);
};

TEST_F(OldAndNew, OneOfThemLoadsWhateverTheInstantOfTheKill) {
  bool was_new = false;
  int kills = 0;
  for (bool finished = false; !finished; ++kills) {
    ASSERT_LT(kills, 1000);
    SCOPED_TRACE(kills);
    const FolderInMemory folder;
    WriteWhole(folder.path() + "/notes.txt", "mine");
    ASSERT_EQ(Save(folder.path(), old_), absl::OkStatus());
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      KillingOperations operations(kills);
      _exit(Save(folder.path(), new_, operations).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    finished = WIFEXITED(status);
    ASSERT_TRUE(finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;
    const bool is_new = IsNew(folder.path());
    // Expect: once the new checkpoint is current, it remains so.
    EXPECT_TRUE(is_new || !was_new);
    was_new = is_new;
    // Expect: the next save works, and leaves only the manifest, its data, and files that are not
    // ours.
    ASSERT_EQ(Save(folder.path(), next_), absl::OkStatus());
    EXPECT_EQ(*Load(folder.path()), next_);
    EXPECT_EQ(NamesIn(folder.path()),
              (std::vector<std::string>{"manifest.json", "notes.txt",
                                        ManifestOf(folder.path()).data_file}));
  }
  EXPECT_TRUE(was_new);
  EXPECT_GT(kills, 30);
}

// One call fails, and all others work.
class FailingOperations final : public CountingOperations {
 public:
  FailingOperations(int index, int error) : left_(index), error_(error) {}
  const std::string& failed() const { return failed_; }

 private:
  int Call(const char* what, const std::function<int()>& call) override {
    if (left_-- != 0) return call();
    failed_ = what;
    return error_;
  }
  int left_;
  int error_;
  std::string failed_;
};

TEST_F(OldAndNew, EveryFailingCallIsReportedAndNothingIsLost) {
  const std::map<int, std::string> errors = {{EIO, "Input/output error"},
                                             {ENOSPC, "No space left on device"},
                                             {EDQUOT, "Disk quota exceeded"}};
  for (const auto& [error, text] : errors) {
    std::set<std::string> seen;
    for (int i = 0;; ++i) {
      ASSERT_LT(i, 1000);
      const FolderInMemory folder;
      ASSERT_EQ(Save(folder.path(), old_), absl::OkStatus());
      FailingOperations operations(i, error);
      const absl::Status status = Save(folder.path(), new_, operations);
      const bool is_new = IsNew(folder.path());
      if (operations.failed().empty()) {
        EXPECT_EQ(status, absl::OkStatus());
        break;
      }
      seen.insert(operations.failed());
      SCOPED_TRACE(operations.failed() + " " + std::to_string(i));
      // A failure to remove the old state does not mean that the new one is lost.
      if (status.ok()) {
        EXPECT_EQ(operations.failed(), "remove");
        EXPECT_TRUE(is_new);
      } else {
        EXPECT_TRUE(TextOf(status).starts_with(folder.path())) << status;
        EXPECT_TRUE(TextOf(status).ends_with(text)) << status;
        const bool warns =
            TextOf(status).find("a power loss may lose the new checkpoint") != std::string::npos;
        EXPECT_EQ(warns, is_new) << status;
        EXPECT_TRUE(error == EIO || absl::IsResourceExhausted(status)) << status;
      }
      ASSERT_EQ(Save(folder.path(), next_), absl::OkStatus());
      EXPECT_EQ(*Load(folder.path()), next_);
      EXPECT_EQ(NamesIn(folder.path()).size(), 2u);
    }
    EXPECT_EQ(seen, (std::set<std::string>{"create", "reserve", "write", "read", "sync", "rename",
                                           "remove"}));
  }
}

TEST_F(OldAndNew, ASaverThatFailsLeavesNoFiles) {
  for (int i = 0; i < 9; ++i) {  // create, reserve, header, three tensors, read back
    const FolderInMemory folder;
    ASSERT_EQ(Save(folder.path(), old_), absl::OkStatus());
    const std::vector<std::string> before = NamesIn(folder.path());
    FailingOperations operations(i, ENOSPC);
    // The first call would remove what the manifest says it replaced. That is nothing, so there is
    // no such call.
    ASSERT_FALSE(Save(folder.path(), new_, operations).ok());
    EXPECT_EQ(NamesIn(folder.path()), before) << operations.failed();
  }
}

// A model of a power loss: bytes and names that were synced survive, together with any subset of
// the name changes since then. Each call is also executed. After it, the model collects all folders
// that a power loss could leave at that instant.
class PowerLossOperations final : public FileOperations {
 public:
  using Image = std::map<std::string, std::string>;  // name -> bytes

  explicit PowerLossOperations(const std::string& folder) {
    for (const std::string& name : NamesIn(folder))
      durable_[name] = NewFile(ReadWhole(folder + "/" + name));
    CollectImages();
  }
  const std::set<Image>& images() const { return images_; }

  int CreateFile(int folder, const std::string& name, Descriptor& file) override {
    const int error = FileOperations::CreateFile(folder, name, file);
    PHUB_CHECK(error == 0, "name={}", name);
    const std::size_t number = NewFile("");
    file_of_[file.get()] = number;
    live_[name] = number;
    changes_.push_back([name, number](Names& names) { names[name] = number; });
    CollectImages();
    return 0;
  }
  int WriteAt(int file, std::span<const std::byte> bytes, std::uint64_t offset) override {
    synced_.at(file_of_.at(file)) = "";  // until the next sync, the content is undefined
    return FileOperations::WriteAt(file, bytes, offset);
  }
  int Sync(int file) override {
    const auto found = file_of_.find(file);
    if (found == file_of_.end()) {
      for (const auto& change : changes_) change(durable_);
      changes_.clear();
    } else {
      std::string& bytes = synced_.at(found->second);
      bytes.resize(*FileBytes(file, "file"));
      PHUB_CHECK(ReadAt(file, std::as_writable_bytes(std::span(bytes)), 0) == 0);
    }
    CollectImages();
    return FileOperations::Sync(file);
  }
  int Rename(int folder, const std::string& from, const std::string& to) override {
    const std::size_t number = live_.at(from);
    live_.erase(from);
    live_[to] = number;
    changes_.push_back([from, to, number](Names& names) {
      names.erase(from);
      names[to] = number;
    });
    CollectImages();
    return FileOperations::Rename(folder, from, to);
  }
  int Remove(int folder, const std::string& name) override {
    changes_.push_back([name](Names& names) { names.erase(name); });
    CollectImages();
    return FileOperations::Remove(folder, name);
  }

 private:
  using Names = std::map<std::string, std::size_t>;  // name -> number of a file

  std::size_t NewFile(std::string bytes) {
    synced_.push_back(std::move(bytes));
    return synced_.size() - 1;
  }
  void CollectImages() {
    for (std::size_t part = 0; part < std::size_t{1} << changes_.size(); ++part) {
      Names names = durable_;
      for (std::size_t i = 0; i < changes_.size(); ++i) {
        if (part >> i & 1) changes_[i](names);
      }
      Image image;
      for (const auto& [name, number] : names) image[name] = synced_[number];
      images_.insert(image);
    }
  }

  std::vector<std::string> synced_;
  std::map<int, std::size_t> file_of_;
  Names live_;
  Names durable_;
  std::vector<std::function<void(Names&)>> changes_;
  std::set<Image> images_;
};

TEST_F(OldAndNew, OneOfThemLoadsWhateverAPowerLossLeaves) {
  const FolderInMemory folder;
  ASSERT_EQ(Save(folder.path(), old_), absl::OkStatus());
  PowerLossOperations operations(folder.path());
  ASSERT_EQ(Save(folder.path(), new_, operations), absl::OkStatus());
  bool seen_old = false;
  bool seen_new = false;
  for (const auto& image : operations.images()) {
    const FolderInMemory after;
    std::string names;
    for (const auto& [name, bytes] : image)
      names += name + " " + std::to_string(bytes.size()) + "; ";
    SCOPED_TRACE(names);
    for (const auto& [name, bytes] : image) WriteWhole(after.path() + "/" + name, bytes);
    const bool is_new = IsNew(after.path());
    seen_old |= !is_new;
    seen_new |= is_new;
    ASSERT_EQ(Save(after.path(), next_), absl::OkStatus());
    EXPECT_EQ(*Load(after.path()), next_);
    EXPECT_EQ(NamesIn(after.path()).size(), 2u);
  }
  EXPECT_TRUE(seen_old && seen_new);
  EXPECT_GE(operations.images().size(), 10u);
}

}  // namespace
}  // namespace phub::checkpoint
