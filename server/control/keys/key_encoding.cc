#include "server/control/keys/key_encoding.h"

#include <fmt/core.h>

namespace phub::server {
namespace {

static_assert(v1::ENCODING_INT8 == static_cast<int>(numeric::Encoding::kInt8));
static_assert(v1::ENCODING_TOPK == static_cast<int>(numeric::Encoding::kTopK));
static_assert(v1::ENCODING_RANDOMK == static_cast<int>(numeric::Encoding::kRandomK));
static_assert(numeric::kEncodingMax == v1::ENCODING_RANDOMK);

bool IsKnown(int encoding) { return encoding >= 0 && encoding <= numeric::kEncodingMax; }

// What is wrong with the share of elements that are sent.
std::string WhyNotKept(const v1::KeySpec& key, const char* name) {
  const bool sparse = numeric::IsSparse(static_cast<numeric::Encoding>(key.encoding()));
  if (!sparse && key.kept_millionths() != 0) {
    return fmt::format("kept is {} millionths, but compression {} has no such share",
                       key.kept_millionths(), name);
  }
  if (!sparse || (key.kept_millionths() >= 1 && key.kept_millionths() <= numeric::kKeptMax)) {
    return {};
  }
  return fmt::format("kept is {} millionths of the elements; compression {} allows 1 to {}",
                     key.kept_millionths(), name, numeric::kKeptMax);
}

}  // namespace

std::string WhyNotEncoded(const ShardConfig& config, const v1::KeySpec& key) {
  if (!IsKnown(key.encoding())) {
    return fmt::format("unknown compression number {}; this daemon supports int8, topk and randomk",
                       static_cast<int>(key.encoding()));
  }
  const auto kind = static_cast<numeric::Encoding>(key.encoding());
  const char* const name = numeric::ToString(kind);
  if (std::string why = WhyNotKept(key, name); !why.empty()) return why;
  if (kind == numeric::Encoding::kNone) return {};
  const bool is_f32 =
      key.type() == v1::ELEMENT_TYPE_F32 && (key.gradient_type() == v1::ELEMENT_TYPE_UNSPECIFIED ||
                                             key.gradient_type() == v1::ELEMENT_TYPE_F32);
  if (!is_f32) {
    return fmt::format("compression {} needs type f32, and gradient_type f32", name);
  }
  if (key.operation() != v1::OPERATION_SUM && key.operation() != v1::OPERATION_MEAN) {
    return fmt::format("compression {} needs operation sum or mean", name);
  }
  if (key.movement() != v1::MOVEMENT_ALL_REDUCE) {
    return fmt::format("compression {} needs movement all_reduce", name);
  }
  if (config.sum_block != 0)
    return fmt::format("compression {} does not work with sum=fixed", name);
  if (config.restart && numeric::IsSparse(kind)) {
    return fmt::format(
        "compression {} does not work with restart=true: what a rank has not sent "
        "yet is lost with its process",
        name);
  }
  return {};
}

numeric::GradientEncoding EncodingOf(const v1::KeySpec& key) {
  return {static_cast<numeric::Encoding>(key.encoding()), key.kept_millionths()};
}

std::string DescribeEncoding(const v1::KeySpec& key) {
  const std::string name = IsKnown(key.encoding())
                               ? numeric::ToString(static_cast<numeric::Encoding>(key.encoding()))
                               : fmt::format("number {}", static_cast<int>(key.encoding()));
  if (key.kept_millionths() == 0) return fmt::format("compression {}", name);
  return fmt::format("compression {} of {}", name, key.kept_millionths() / 1e6);
}

}  // namespace phub::server
