// Parses any bytes as the manifest of a checkpoint. Since the manifest's checksum rejects nearly
// all inputs, parses them again with a correct checksum.
#include <string>

#include "common/base/status_text.h"
#include "common/checkpoint/checksum.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/strict_json.h"
#include "tests/fuzz/fuzz.h"

namespace phub::fuzz {
namespace {

// An error has a message. An accepted manifest is written and reads back to the same value.
void CheckManifest(std::string_view text) {
  const auto manifest = checkpoint::ParseManifest(text);
  if (!manifest.ok()) {
    PHUB_CHECK(!manifest.status().message().empty());
    return;
  }
  PHUB_CHECK(checkpoint::IsDataFileName(manifest->data_file));
  PHUB_CHECK(manifest->replaces.empty() || checkpoint::IsDataFileName(manifest->replaces));
  const auto again = checkpoint::ParseManifest(checkpoint::ManifestToJson(*manifest));
  PHUB_CHECK(again.ok(), "{}", MessageOf(again.status()));
  PHUB_CHECK(*again == *manifest);
}

}  // namespace
}  // namespace phub::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  phub::fuzz::CheckManifest(text);
  auto root = phub::checkpoint::ParseStrictJson(text, phub::checkpoint::kManifestBytesMax);
  if (!root.ok() || !root->is_object()) return 0;
  root->erase("sha256");
  (*root)["sha256"] = phub::checkpoint::Sha256Of(root->dump());
  phub::fuzz::CheckManifest(root->dump());
  return 0;
}
