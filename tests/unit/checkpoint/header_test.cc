// Valid safetensors headers, and every kind of invalid one.
#include <cstring>

#include "common/checkpoint/metadata.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/strict_json.h"
#include "tests/unit/checkpoint/checkpoint_support.h"

namespace phub::checkpoint {
namespace {

std::string Refusal(const std::string& json, std::uint64_t data_bytes) {
  const auto header = ParseHeader(json, data_bytes);
  EXPECT_FALSE(header.ok()) << json;
  return header.ok() ? "" : TextOf(header.status());
}

std::string Tensor(const std::string& name, const std::string& rest) {
  return "\"" + name + "\":{" + rest + "}";
}

const std::string kFour = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
const std::string kNext = R"("dtype":"U8","shape":[3],"data_offsets":[4,7])";

TEST(SafetensorsHeader, ReadsWhatOthersWrite) {
  // Tensors in another order than their places, no metadata, a scalar, an empty tensor, padding.
  const auto header =
      ParseHeader(R"({"b":{"dtype":"I64","shape":[],"data_offsets":[12,20]},)"
                  R"( "c":{"dtype":"F16","shape":[5,0],"data_offsets":[12,12]},)"
                  R"( "a":{"data_offsets":[0,12],"shape":[2,3],"dtype":"BF16"}}    )",
                  20);
  ASSERT_EQ(header.status(), absl::OkStatus());
  ASSERT_EQ(header->tensors.size(), 3u);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(header->tensors[1].name, "c");
  EXPECT_EQ(header->tensors[2].type, numeric::ElementType::kI64);
  EXPECT_TRUE(ParseHeader("{}", 0).ok());
}

TEST(SafetensorsHeader, LengthsAreBounded) {
  const auto decode = [](std::uint64_t length, std::uint64_t file_bytes) {
    std::array<std::byte, kHeaderLengthBytes> bytes{};
    std::memcpy(bytes.data(), &length, sizeof length);
    return DecodeHeaderLength(bytes, file_bytes);
  };
  EXPECT_EQ(*decode(92, 100), 92u);
  EXPECT_EQ(*decode(kHeaderBytesMax, UINT64_MAX), kHeaderBytesMax);
  EXPECT_FALSE(decode(93, 100).ok());
  EXPECT_FALSE(decode(0, 7).ok());
  EXPECT_FALSE(decode(kHeaderBytesMax + 1, UINT64_MAX).ok());
  EXPECT_FALSE(decode(UINT64_MAX, UINT64_MAX).ok());
  EXPECT_FALSE(decode(UINT64_MAX - 7, 100).ok());
}

TEST(SafetensorsHeader, PlacesCoverTheDataExactly) {
  const std::string a = Tensor("a", kFour);
  EXPECT_TRUE(ParseHeader("{" + a + "," + Tensor("b", kNext) + "}", 7).ok());
  const auto with = [&](const std::string& rest, std::uint64_t data_bytes) {
    return Refusal("{" + a + "," + Tensor("b", rest) + "}", data_bytes);
  };
  EXPECT_NE(with(R"("dtype":"U8","shape":[3],"data_offsets":[5,8])", 8).find("leaving a gap"),
            std::string::npos);
  EXPECT_NE(with(R"("dtype":"U8","shape":[3],"data_offsets":[3,6])", 6).find("begins at byte 3"),
            std::string::npos);
  EXPECT_NE(with(kFour, 4).find("inside the tensor before"), std::string::npos);
  EXPECT_NE(with(kNext, 8).find("the tensors have 7 bytes, but the file has 8"), std::string::npos);
  EXPECT_NE(with(kNext, 6).find("the file has 6 bytes"), std::string::npos);
  EXPECT_NE(with(R"("dtype":"U8","shape":[3],"data_offsets":[7,4])", 7).find("before its begin 7"),
            std::string::npos);
}

TEST(SafetensorsHeader, ShapesMakeTheirBytes) {
  const auto refused = [](const std::string& tensor) {
    return Refusal("{" + Tensor("a", tensor) + "}", 4).find("tensor \"a\"") != std::string::npos;
  };
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F16","shape":[1],"data_offsets":[0,4])"));
  // 2^62 + 1 elements of four bytes are 4 bytes, modulo 2^64.
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[4611686018427387905],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[1],"data_offsets":[0])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":4,"shape":[1],"data_offsets":[0,4])"));
  EXPECT_TRUE(refused(R"("dtype":"F32","shape":[1])"));
  EXPECT_TRUE(refused(kFour + R"(,"more":1)"));
}

TEST(SafetensorsHeader, JsonIsStrict) {
  const std::string a = Tensor("a", kFour);
  EXPECT_NE(Refusal("{" + a + "," + a + "}", 4).find("the name \"a\" occurs twice"),
            std::string::npos);
  EXPECT_NE(Refusal("{\"a\":{" + kFour + R"(,"dtype":"F32"}})", 4).find("\"dtype\" occurs twice"),
            std::string::npos);
  // The same name, spelled with an escape.
  EXPECT_NE(Refusal("{" + a + "," + Tensor("\\u0061", kNext) + "}", 7).find("occurs twice"),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4)
                .find("not a 64-bit integer"),
            std::string::npos);
  EXPECT_NE(Refusal(R"({"a":null})", 0).find("null"), std::string::npos);
  EXPECT_NE(Refusal("{\"\xff\":{" + kFour + "}}", 4).find("invalid JSON"), std::string::npos);
  EXPECT_NE(Refusal(std::string("{}\0{}", 5), 0).find("invalid JSON"), std::string::npos);
  EXPECT_NE(Refusal("{} {}", 0).find("invalid JSON"), std::string::npos);
  EXPECT_NE(Refusal(R"({"__metadata__":{"a":1}})", 0).find("__metadata__"), std::string::npos);
  EXPECT_NE(Refusal(R"({"__metadata__":[]})", 0).find("__metadata__"), std::string::npos);
  for (const char* json : {"", " {}", "{}\n", "[]", "{", "}", "\xef\xbb\xbf{}", "{}x"})
    EXPECT_NE(Refusal(json, 0), "") << json;
}

TEST(SafetensorsHeader, DeepAndWideJsonEndsEarly) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"a\":";
    while (deep.size() < 20'000'000) deep += open;
    EXPECT_NE(Refusal(deep + "}", 0).find("nested deeper than 16 levels"), std::string::npos);
  }
  std::string wide = "{\"a\":[0";
  while (wide.size() < 20'000'000) wide += ",0";
  EXPECT_NE(Refusal(wide + "]}", 0).find("values"), std::string::npos);
}

TEST(SafetensorsHeader, EncodesToWhatItReads) {
  const SafetensorsHeader header = HeaderOf(SmallCheckpoint(5, 1).description);
  const std::string bytes = EncodeHeader(header);
  EXPECT_EQ(bytes.size() % 8, 0u);
  const auto read = ParseHeader(std::string_view(bytes).substr(8), header.tensors.back().end);
  ASSERT_EQ(read.status(), absl::OkStatus());
  EXPECT_EQ(*read, header);
  const auto description = DescriptionOf(*read);
  ASSERT_EQ(description.status(), absl::OkStatus());
  EXPECT_EQ(*description, SmallCheckpoint(5, 1).description);
}

// A header whose metadata or tensors were changed afterwards.
template <typename Change>
std::string RefusedDescription(Change change) {
  SafetensorsHeader header = HeaderOf(SmallCheckpoint(5, 1).description);
  change(header);
  const auto description = DescriptionOf(header);
  EXPECT_FALSE(description.ok());
  return description.ok() ? "" : TextOf(description.status());
}

TEST(CheckpointMetadata, TensorsAreExactlyThoseOfTheKeys) {
  EXPECT_NE(
      RefusedDescription([](auto& h) { h.tensors.pop_back(); }).find("it is missing in the file"),
      std::string::npos);
  EXPECT_NE(RefusedDescription([](auto& h) {
              h.tensors.push_back({"more", {}, {1}, 0, 0});
            }).find("tensor \"more\": it does not belong to any key"),
            std::string::npos);
  EXPECT_NE(RefusedDescription([](auto& h) {
              h.tensors[0].shape = {3, 3};
            }).find("it must have one dimension of 9 elements of f32"),
            std::string::npos);
  EXPECT_NE(RefusedDescription([](auto& h) {
              h.tensors[0].type = numeric::ElementType::kI32;
            }).find("it must have one dimension of 9 elements of f32"),
            std::string::npos);
}

TEST(CheckpointMetadata, ForeignAndChangedMetadataIsRefused) {
  const auto with = [](const char* name, const std::string& value) {
    return RefusedDescription([&](auto& header) { header.metadata[name] = value; });
  };
  EXPECT_NE(RefusedDescription([](auto& h) {
              h.metadata = {{"format", "pt"}};
            }).find("not a phub checkpoint"),
            std::string::npos);
  EXPECT_NE(with("phub.format_version", "2").find("this phub reads version 1"), std::string::npos);
  EXPECT_NE(with("more", "1").find("unknown metadata \"more\""), std::string::npos);
  for (const char* number : {"", "04", "+4", "4 ", "-1", "4.0", "99999999999999999999", "x"})
    EXPECT_NE(with("phub.world_size", number)
                  .find(std::string("phub.world_size: \"") + number + "\" is not a valid number"),
              std::string::npos)
        << number;
  EXPECT_NE(with("phub.job", "").find("not a valid job name"), std::string::npos);
  EXPECT_NE(with("phub.daemons", "[1]").find("list of strings"), std::string::npos);
  EXPECT_NE(with("phub.keys", "[[[[").find("phub.keys"), std::string::npos);
  EXPECT_NE(with("phub.keys", "[{}]").find("phub.keys[0]: field \"name\" is missing"),
            std::string::npos);
  EXPECT_NE(with("phub.keys", "[]").find("does not belong to any key"), std::string::npos);
  const std::string keys = HeaderOf(SmallCheckpoint(5, 1).description).metadata.at("phub.keys");
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string changed = keys;
    const std::size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return with("phub.keys", changed.replace(at, from.size(), to));
  };
  EXPECT_NE(replaced("\"0.1\"", "\"0.10\"").find("\"learning_rate\" is not a valid number"),
            std::string::npos);
  EXPECT_NE(replaced("\"0.1\"", "\"inf\"").find("is not a valid number"), std::string::npos);
  EXPECT_NE(replaced("\"0.1\"", "\"nan\"").find("is not a valid number"), std::string::npos);
  EXPECT_NE(replaced("\"0.1\"", "\"0x1p4\"").find("is not a valid number"), std::string::npos);
  EXPECT_NE(replaced("\"type\":\"f32\"", "\"type\":\"f31\"").find("unknown type"),
            std::string::npos);
  EXPECT_NE(
      replaced("\"record_version\":3", "\"record_version\":4294967296").find("record_version"),
      std::string::npos);
  EXPECT_NE(replaced("\"initialized\":true", "\"initialized\":1").find("true or false"),
            std::string::npos);
  EXPECT_NE(
      replaced("\"initialized\":true", "\"initialized\":false").find("does not belong to any key"),
      std::string::npos);
}

TEST(DataFileName, OnlyOurOwn) {
  EXPECT_EQ(DataFileName(412, 0xabc), "state-412-00000abc.safetensors");
  EXPECT_TRUE(IsDataFileName(DataFileName(0, 0)));
  EXPECT_TRUE(IsDataFileName(DataFileName(UINT64_MAX, UINT32_MAX)));
  for (const char* name :
       {"", "state-.safetensors", "state-1-.safetensors", "state--00000000.safetensors",
        "state-1-0000000.safetensors", "state-1-000000000.safetensors",
        "state-1-0000000G.safetensors", "state-1-0000000A.safetensors",
        "../state-1-00000000.safetensors", "state-1-00000000.safetensors/",
        "state-../-00000000.safetensors", "state-1-00000000.safetensors.tmp", "manifest.json"})
    EXPECT_FALSE(IsDataFileName(name)) << name;
}

}  // namespace
}  // namespace phub::checkpoint
