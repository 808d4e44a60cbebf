// Writes the generated part of the corpus: well-formed inputs and near misses.
//   fuzz_make_corpus --write FOLDER    (FOLDER/<target>/<name>; after a change of the wire)
//   fuzz_make_corpus --check FOLDER    (in ctest: the checked-in files must equal the output)
// Inputs that a fuzzer found are next to these and are not changed.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/checkpoint/checksum.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/metadata.h"
#include "common/wire/lane_hello.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "common/wire/verbs_lane.h"
#include "tests/fuzz/corpus.h"

namespace {

namespace wire = phub::wire;
using phub::fuzz::AddMessageHeaders;
using phub::fuzz::AddNearMisses;
using phub::fuzz::Encoded;
using phub::fuzz::File;
using phub::fuzz::Files;
using phub::wire::LaneHello;
using phub::wire::LaneRefusal;
using phub::wire::LaneWelcome;
using phub::wire::MessageHeader;
using phub::wire::MessageKind;

void AddHyperParameters(Files& files) {
  const auto encoded = [](const wire::HyperParameters& values) {
    std::vector<std::byte> bytes(phub::wire::kHyperParametersBytes);
    wire::EncodeHyperParameters(values, std::span(bytes).first<wire::kHyperParametersBytes>());
    return bytes;
  };
  wire::HyperParameters values;
  files.push_back({"hyper_parameters/zero", encoded(values)});
  values.learning_rate = 0.1;
  values.momentum = 0.9;
  values.dampening = -0.0;
  values.weight_decay = std::numeric_limits<double>::denorm_min();
  files.push_back({"hyper_parameters/ordinary", encoded(values)});
  AddNearMisses(files, "hyper_parameters", encoded(values), {0, 7, 15, 23, 31, 63, 80, 95});
  values.momentum = std::numeric_limits<double>::infinity();
  files.push_back({"hyper_parameters/infinite", encoded(values)});
  values.momentum = std::numeric_limits<double>::quiet_NaN();
  files.push_back({"hyper_parameters/nan", encoded(values)});
}

void AddLaneHellos(Files& files) {
  LaneHello hello;
  hello.version_min = 1;
  hello.version_max = 2;
  hello.core = {1};
  hello.rank = {3};
  hello.incarnation = {0x0123456789abcdef};
  hello.membership_epoch = {1};
  hello.nonce.fill(std::byte{0x5A});
  std::vector<std::byte> bytes(phub::wire::kLaneHelloBytes);
  EncodeLaneHello(hello, std::span<std::byte, phub::wire::kLaneHelloBytes>(bytes));
  PHUB_CHECK(DecodeLaneHello(bytes, hello));
  files.push_back({"lane_hello/ordinary", bytes});
  AddNearMisses(files, "lane_hello", bytes, {0, 3, 4, 5, 6, 28, 32, 47, 48, 63});
}

void AddLaneWelcomes(Files& files) {
  const auto encoded = [](const LaneWelcome& welcome) {
    std::vector<std::byte> bytes(phub::wire::kLaneWelcomeBytes);
    EncodeLaneWelcome(welcome, std::span<std::byte, phub::wire::kLaneWelcomeBytes>(bytes));
    LaneWelcome decoded;
    PHUB_CHECK(DecodeLaneWelcome(bytes, decoded));
    return bytes;
  };
  const std::vector<std::byte> accepted = encoded({1, LaneRefusal::kNone, 1, 2});
  files.push_back({"lane_welcome/accepted", accepted});
  files.push_back({"lane_welcome/refused", encoded({0, LaneRefusal::kNonce, 1, 2})});
  files.push_back({"lane_welcome/no_version", encoded({0, LaneRefusal::kVersion, 3, 4})});
  AddNearMisses(files, "lane_welcome", accepted, {0, 3, 4, 5, 6, 7, 8, 15});
}

// One message of a stream. Its header has the number of payload bytes that follow.
void Append(std::vector<std::byte>& stream, MessageKind kind, std::uint32_t slot,
            std::uint32_t payload_bytes) {
  MessageHeader header;
  header.kind = kind;
  header.slot = {slot};
  header.payload_bytes = payload_bytes;
  const std::vector<std::byte> encoded = Encoded(header);
  stream.insert(stream.end(), encoded.begin(), encoded.end());
  for (std::uint32_t i = 0; i < payload_bytes; ++i) {
    stream.push_back(static_cast<std::byte>(slot * 16 + i % 251));
  }
}

// stream_receiver_fuzz.cc describes the first two bytes. Slots 0, 2 and 3 have 64, 1000 and 257
// bytes, and slot 1 is closed.
void AddStreams(Files& files) {
  const auto start = [](unsigned options, unsigned seed) {
    return std::vector{static_cast<std::byte>(options), static_cast<std::byte>(seed)};
  };
  std::vector<std::byte> mixed = start(3, 1);
  for (std::uint32_t round = 0; round < 3; ++round) {
    Append(mixed, MessageKind::kHyperParameters, 0, phub::wire::kHyperParametersBytes);
    Append(mixed, MessageKind::kGradient, 2, 1000 - round);
    Append(mixed, MessageKind::kGradient, 0, 64);
    Append(mixed, MessageKind::kParameters, 3, 257);
    Append(mixed, MessageKind::kGradient, 0, 0);
  }
  files.push_back({"stream_receiver/mixed", mixed});
  mixed[0] = std::byte{4};  // one message, held
  files.push_back({"stream_receiver/held", mixed});
  AddNearMisses(files, "stream_receiver", mixed, {2, 4, 5, 6, 34, 50, 98});

  std::vector<std::byte> credits = start(7, 2);
  for (std::uint32_t slot = 0; slot < 40; ++slot) Append(credits, MessageKind::kCredit, slot, 0);
  files.push_back({"stream_receiver/credits", credits});

  struct Refused {
    const char* name;
    std::uint32_t slot;
    std::uint32_t payload_bytes;
  };
  for (const Refused& each : {Refused{"slot_out_of_range", 4, 8}, Refused{"slot_closed", 1, 8},
                              Refused{"slot_too_small", 0, 65}}) {
    std::vector<std::byte> stream = start(1, 3);
    Append(stream, MessageKind::kGradient, 0, 64);
    Append(stream, MessageKind::kGradient, each.slot, each.payload_bytes);
    files.push_back({std::string("stream_receiver/") + each.name, stream});
  }
}

std::vector<std::byte> BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

phub::checkpoint::CheckpointDescription SavedDescription() {
  phub::checkpoint::SavedKey key;
  key.name = "fc1.weight";
  key.element_count = 3;
  key.parameter_type = phub::numeric::ElementType::kBf16;
  key.operation = "mean";
  key.optimizer = "adam";
  key.hyper_parameters = {{"learning_rate", 0.1}, {"beta1", -0.0}};
  key.optimizer_tensors = {{"first_moment", phub::numeric::ElementType::kF32},
                           {"second_moment", phub::numeric::ElementType::kF64}};
  key.initialized = true;
  phub::checkpoint::CheckpointDescription description;
  description.job = "digits";
  description.world_size = 4;
  description.iteration = 412;
  description.phub_version = "0.1.0";
  description.daemons = {"rack7:7700"};
  description.keys.push_back(key);
  return description;
}

// safetensors_fuzz.cc reads an input as a whole file, and as a header that follows the number of
// bytes of its data.
void AddSafetensors(Files& files) {
  const phub::checkpoint::SafetensorsHeader header = phub::checkpoint::HeaderOf(SavedDescription());
  std::string file = phub::checkpoint::EncodeHeader(header);
  std::string described(8, '\0');
  described[0] = static_cast<char>(header.tensors.back().end);
  files.push_back({"safetensors/described", BytesOf(described + file.substr(8))});
  file.append(header.tensors.back().end, 'x');
  files.push_back({"safetensors/file", BytesOf(file)});
  AddNearMisses(files, "safetensors", BytesOf(file), {0, 7, 8, 10, 200});
  const auto plain = [&](const char* name, char data_bytes, std::string_view json) {
    std::string input(8, '\0');
    input[0] = data_bytes;
    files.push_back({std::string("safetensors/") + name, BytesOf(input.append(json))});
  };
  plain("foreign", 24,
        R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],)"
        R"("data_offsets":[0,24]}})");
  plain("hole", 8,
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
        R"("b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})");
  plain("twice", 2,
        R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
        R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})");
  plain("overflow", 4,
        R"({"a":{"dtype":"F32","shape":[4611686018427387905],)"
        R"("data_offsets":[0,4]}})");
  plain("nested", 0, "{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[");
}

void AddCheckpointManifests(Files& files) {
  phub::checkpoint::Manifest manifest;
  manifest.description = SavedDescription();
  for (const auto& tensor : TensorsOf(manifest.description))
    manifest.tensors.push_back({tensor.name, phub::checkpoint::Sha256Of(tensor.name)});
  manifest.description.keys.clear();
  manifest.data_file = phub::checkpoint::DataFileName(412, 0xabc);
  manifest.data_bytes = 1000;
  manifest.data_sha256 = phub::checkpoint::Sha256Of("data");
  const std::vector<std::byte> first = BytesOf(ManifestToJson(manifest));
  PHUB_CHECK(phub::checkpoint::ParseManifest(ManifestToJson(manifest)).ok());
  files.push_back({"checkpoint_manifest/first", first});
  AddNearMisses(files, "checkpoint_manifest", first, {0, 20, 100, 400});
  manifest.replaces = phub::checkpoint::DataFileName(411, 0xabd);
  files.push_back({"checkpoint_manifest/later", BytesOf(ManifestToJson(manifest))});
  files.push_back({"checkpoint_manifest/foreign", BytesOf(R"({"name":"My App","icons":[]})")});
}

void AddSharedMemory(Files& files) {
  std::vector<std::byte> request(phub::wire::kSharedBatchRequestBytes);
  phub::wire::EncodeSharedBatchRequest(
      {.version_min = 1, .version_max = 2, .batch = 7, .rank = {3}, .incarnation = {0x0123456789}},
      std::span<std::byte, phub::wire::kSharedBatchRequestBytes>(request));
  files.push_back({"shared_memory/request", request});
  AddNearMisses(files, "shared_memory", request, {0, 3, 4, 5, 6, 28, 48, 63});
  std::vector<std::byte> lane(phub::wire::kSharedLaneBytes);
  phub::wire::EncodeSharedLane({256, 262144, 16, 65536},
                               std::span<std::byte, phub::wire::kSharedLaneBytes>(lane));
  files.push_back({"shared_memory/lane", lane});
  std::vector<std::byte> batch(phub::wire::kSharedBatchBytes);
  phub::wire::EncodeSharedBatch({4096, 8192, 2, 3},
                                std::span<std::byte, phub::wire::kSharedBatchBytes>(batch));
  files.push_back({"shared_memory/batch", batch});
}

void AddVerbsLane(Files& files) {
  std::vector<std::byte> offer(phub::wire::kVerbsOfferBytes);
  const phub::wire::VerbsOffer some{
      .queue_pair = 77, .inbox_address = 1 << 20, .inbox_bytes = 65536, .messages_max = 128};
  phub::wire::EncodeVerbsOffer(some, std::span<std::byte, phub::wire::kVerbsOfferBytes>(offer));
  files.push_back({"verbs_lane/offer", offer});
  AddNearMisses(files, "verbs_lane", offer, {0, 4, 5, 11, 40, 60});
}

// shm_rings_fuzz.cc describes the commands. Slot 0 has 512 bytes and is shared, slot 1 has 20000,
// slot 2 is closed. In addresses, the worker's region is number 1 and the parameters are number 2.
void AddRings(Files& files) {
  constexpr std::byte kPoll{3};
  constexpr std::byte kRelease{6};
  const auto put = [](std::vector<std::byte>& bytes, MessageKind kind, std::uint32_t slot,
                      std::uint32_t payload_bytes, unsigned place, unsigned region) {
    MessageHeader header;
    header.kind = kind;
    header.slot = {slot};
    header.payload_bytes = payload_bytes;
    bytes.push_back(std::byte{0});
    const std::vector<std::byte> encoded = Encoded(header);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    for (const unsigned value : {place, region, 64u, 0u, 0u, 0u}) {
      bytes.push_back(static_cast<std::byte>(value));
    }
  };
  const auto announce = [](std::vector<std::byte>& bytes, unsigned count) {
    for (const unsigned value : {1u, count % 256, count / 256}) {
      bytes.push_back(static_cast<std::byte>(value));
    }
  };
  std::vector<std::byte> mixed;
  for (int round = 0; round < 3; ++round) {
    put(mixed, MessageKind::kGradient, phub::kNoSlot.value, 1000, 3, 1);
    put(mixed, MessageKind::kGradient, 0, 512, 4, 0);
    mixed.insert(mixed.end(), {kPoll, kRelease});
    put(mixed, MessageKind::kGradient, 1, 100, 2, 0);
    put(mixed, MessageKind::kHyperParameters, 0, 96, 1, 0);
    announce(mixed, 60);
    mixed.push_back(kPoll);
    announce(mixed, 40);
    mixed.insert(mixed.end(), {kPoll, kRelease, kPoll, kRelease});
  }
  files.push_back({"shm_rings/mixed", mixed});
  AddNearMisses(files, "shm_rings", mixed, {0, 1, 4, 5, 36, 65, 66, 67, 70, 72});
  std::vector<std::byte> sent;
  for (int round = 0; round < 4; ++round) {  // post, poll, and the worker reads a record
    for (const unsigned value : {4u, 3u, 0u, 4u, 3u, 2u, 2u, 1u, 0u, 0u, 0u, 0u, 0u, 0u, 0u}) {
      sent.push_back(static_cast<std::byte>(value));
    }
  }
  files.push_back({"shm_rings/sent", sent});
  std::vector<std::byte> parameters;
  put(parameters, MessageKind::kGradient, phub::kNoSlot.value, 100, 3, 2);
  files.push_back({"shm_rings/region_of_parameters", parameters});
  std::vector<std::byte> jump;  // more bytes than an arena holds
  put(jump, MessageKind::kGradient, 1, 20000, 2, 0);
  for (const unsigned value : {2u, 1u, 0x20u, 0x4Eu, 0u, 0u, 0u, 0u, 0u, 0u, 3u}) {
    jump.push_back(static_cast<std::byte>(value));
  }
  files.push_back({"shm_rings/arena_jump", jump});
}

bool Write(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  std::ofstream stream(path, std::ios::binary | std::ios::trunc);
  stream.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  return stream.good();
}

bool Holds(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return false;
  const std::string content{std::istreambuf_iterator<char>(stream),
                            std::istreambuf_iterator<char>()};
  return std::ranges::equal(std::as_bytes(std::span(content)), bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc == 3 ? argv[1] : "";
  if (mode != "--write" && mode != "--check") {
    std::fprintf(stderr, "usage: %s --write|--check FOLDER\n", argv[0]);
    return 2;
  }
  Files files;
  AddMessageHeaders(files);
  AddHyperParameters(files);
  AddLaneHellos(files);
  AddLaneWelcomes(files);
  AddStreams(files);
  AddSafetensors(files);
  AddCheckpointManifests(files);
  AddSharedMemory(files);
  AddVerbsLane(files);
  AddRings(files);
  int failures = 0;
  for (const File& file : files) {
    const std::filesystem::path path = std::filesystem::path(argv[2]) / file.path;
    if (mode == "--write" ? Write(path, file.bytes) : Holds(path, file.bytes)) continue;
    std::fprintf(
        stderr, "%s: %s\n", path.c_str(),
        mode == "--write" ? "cannot be written" : "is missing or out of date; use --write");
    ++failures;
  }
  std::printf("files=%zu failures=%d\n", files.size(), failures);
  return failures == 0 ? 0 : 1;
}
