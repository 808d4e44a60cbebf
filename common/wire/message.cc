#include "common/wire/message.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/wire/little_endian.h"

namespace phub::wire {
namespace {

// Offsets of the header's fields; message.h shows the layout.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kVersionAt = 2;
constexpr std::size_t kKindAt = 3;
constexpr std::size_t kPayloadBytesAt = 4;
constexpr std::size_t kIncarnationAt = 8;
constexpr std::size_t kIterationAt = 16;
constexpr std::size_t kMembershipEpochAt = 24;
constexpr std::size_t kChunkAt = 28;
constexpr std::size_t kSlotAt = 32;
constexpr std::size_t kRecordAt = 36;
constexpr std::size_t kKeyAt = 40;
constexpr std::size_t kRootAt = 44;
constexpr std::size_t kOperationAt = 48;
constexpr std::size_t kTypeAt = 49;
constexpr std::size_t kFlagsAt = 50;
constexpr std::size_t kReductionAt = 51;
constexpr std::size_t kReservedAt = 52;
constexpr std::size_t kReservedBytes = 4;
constexpr std::size_t kReplyAddressAt = 56;
// In gradients of pooled keys.
constexpr std::size_t kElementsAt = kRecordAt;
constexpr std::size_t kSequenceAt = kRootAt;
constexpr std::size_t kMoverAt = kReservedAt;
static_assert(kReservedAt + kReservedBytes == kReplyAddressAt);
static_assert(kHyperParametersBytes == 12 * sizeof(double));
static_assert(kHyperParametersBytes <= kInlineBytesMax);  // the payload is inline

bool KindIsKnown(MessageKind kind) {
  switch (kind) {
    case MessageKind::kGradient:
    case MessageKind::kParameters:
    case MessageKind::kCredit:
    case MessageKind::kHyperParameters:
    case MessageKind::kPull:
    case MessageKind::kSummed:
    case MessageKind::kDecision:
    case MessageKind::kKeepAlive:
    case MessageKind::kAnnounce:
    case MessageKind::kStreamIs:
    case MessageKind::kAssign:
    case MessageKind::kUseTcp:
    case MessageKind::kMissing: return true;
  }
  return false;
}

bool OperationIsKnown(RoundOperation operation) {
  switch (operation) {
    case RoundOperation::kReduce:
    case RoundOperation::kAssign:
    case RoundOperation::kLoad:
    case RoundOperation::kMove:
    case RoundOperation::kPool:
    case RoundOperation::kPoolMove: return true;
  }
  return false;
}

std::uint32_t PayloadBytesMax(MessageKind kind) {
  switch (kind) {
    case MessageKind::kGradient:
    case MessageKind::kParameters: return kChunkBytesMax;
    case MessageKind::kCredit:
    case MessageKind::kPull:
    case MessageKind::kSummed:
    case MessageKind::kDecision:
    case MessageKind::kKeepAlive:
    case MessageKind::kUseTcp: return 0;
    case MessageKind::kHyperParameters:
    case MessageKind::kAnnounce:
    case MessageKind::kStreamIs:
    case MessageKind::kAssign:
    case MessageKind::kMissing: return kInlineBytesMax;
  }
  return 0;
}

// Whether the kind has a value where other kinds have a reply address.
bool HasValue(MessageKind kind) {
  return kind == MessageKind::kSummed || kind == MessageKind::kDecision ||
         kind == MessageKind::kAssign;
}

// The oldest lane version that has the kind.
std::uint8_t VersionOf(MessageKind kind) {
  if (kind >= MessageKind::kAnnounce) return kStreamVersion;
  return kind == MessageKind::kKeepAlive ? kKeepAliveVersion : kLaneVersionMin;
}

// The oldest lane version that has the operation.
std::uint8_t VersionOf(RoundOperation operation) {
  switch (operation) {
    case RoundOperation::kReduce:
    case RoundOperation::kAssign:
    case RoundOperation::kLoad: break;
    case RoundOperation::kMove: return kMoveVersion;
    case RoundOperation::kPool: return kPoolVersion;
    case RoundOperation::kPoolMove: return kPoolMoveVersion;
  }
  return kLaneVersionMin;
}

bool IsPooled(const MessageHeader& header) {
  return header.kind == MessageKind::kGradient && IsPooled(header.operation);
}

// Doubles are IEEE 754 binary64 on the wire.
double LoadDouble(const std::byte* bytes) {
  return std::bit_cast<double>(LoadLittleEndian<std::uint64_t>(bytes));
}

void StoreDouble(double value, std::byte* bytes) {
  StoreLittleEndian(std::bit_cast<std::uint64_t>(value), bytes);
}

}  // namespace

std::uint8_t FlagsOf(MessageKind kind) {
  switch (kind) {
    case MessageKind::kGradient:
    case MessageKind::kDecision: return kFlagSkip;
    case MessageKind::kSummed: return kFlagSkip | kFlagNonFinite;
    case MessageKind::kParameters:
    case MessageKind::kCredit:
    case MessageKind::kHyperParameters:
    case MessageKind::kPull:
    case MessageKind::kKeepAlive:
    case MessageKind::kAnnounce:
    case MessageKind::kStreamIs:
    case MessageKind::kAssign:
    case MessageKind::kUseTcp:
    case MessageKind::kMissing: return 0;
  }
  return 0;
}

const char* ToString(DecodeError error) {
  switch (error) {
    case DecodeError::kNone: return "none";
    case DecodeError::kTruncated: return "truncated";
    case DecodeError::kMagic: return "magic";
    case DecodeError::kVersion: return "version";
    case DecodeError::kKind: return "kind";
    case DecodeError::kOperation: return "operation";
    case DecodeError::kType: return "type";
    case DecodeError::kReserved: return "reserved";
    case DecodeError::kPayloadBytes: return "payload_bytes";
  }
  return "unknown";
}

void EncodeHeader(const MessageHeader& header, std::span<std::byte, kHeaderBytes> bytes) {
  std::byte* const at = bytes.data();
  StoreLittleEndian(kMessageMagic, at + kMagicAt);
  StoreLittleEndian(header.version, at + kVersionAt);
  StoreLittleEndian(static_cast<std::uint8_t>(header.kind), at + kKindAt);
  StoreLittleEndian(header.payload_bytes, at + kPayloadBytesAt);
  StoreLittleEndian(header.incarnation.value, at + kIncarnationAt);
  StoreLittleEndian(header.iteration.value, at + kIterationAt);
  StoreLittleEndian(header.membership_epoch.value, at + kMembershipEpochAt);
  StoreLittleEndian(header.chunk.value, at + kChunkAt);
  StoreLittleEndian(header.slot.value, at + kSlotAt);
  std::fill_n(at + kReservedAt, kReservedBytes, std::byte{0});
  if (IsPooled(header)) {
    StoreLittleEndian(header.pool.elements, at + kElementsAt);
    StoreLittleEndian(header.pool.sequence, at + kSequenceAt);
    StoreLittleEndian(header.root.value, at + kMoverAt);
  } else {
    StoreLittleEndian(header.hyper_version.value, at + kRecordAt);
    StoreLittleEndian(header.key.value, at + kKeyAt);
    StoreLittleEndian(header.root.value, at + kRootAt);
  }
  StoreLittleEndian(static_cast<std::uint8_t>(header.operation), at + kOperationAt);
  StoreLittleEndian(static_cast<std::uint8_t>(header.type), at + kTypeAt);
  StoreLittleEndian(header.flags, at + kFlagsAt);
  StoreLittleEndian(
      IsPooled(header) ? static_cast<std::uint8_t>(header.pool.reduction) : std::uint8_t{0},
      at + kReductionAt);
  StoreLittleEndian(HasValue(header.kind) ? header.value_bits : header.reply_address.value,
                    at + kReplyAddressAt);
}

DecodeError DecodeHeader(std::span<const std::byte> bytes, MessageHeader& header) {
  if (bytes.size() < kHeaderBytes) return DecodeError::kTruncated;
  const std::byte* const at = bytes.data();
  if (LoadLittleEndian<std::uint16_t>(at + kMagicAt) != kMessageMagic) return DecodeError::kMagic;

  MessageHeader decoded;
  decoded.version = LoadLittleEndian<std::uint8_t>(at + kVersionAt);
  if (decoded.version < kLaneVersionMin || decoded.version > kLaneVersion) {
    return DecodeError::kVersion;
  }
  decoded.kind = static_cast<MessageKind>(LoadLittleEndian<std::uint8_t>(at + kKindAt));
  if (!KindIsKnown(decoded.kind)) return DecodeError::kKind;
  if (decoded.version < VersionOf(decoded.kind)) return DecodeError::kKind;
  decoded.operation =
      static_cast<RoundOperation>(LoadLittleEndian<std::uint8_t>(at + kOperationAt));
  if (!OperationIsKnown(decoded.operation)) return DecodeError::kOperation;
  if (decoded.version < VersionOf(decoded.operation)) return DecodeError::kOperation;
  // Only gradients state how their round is pooled.
  if (IsPooled(decoded.operation) && decoded.kind != MessageKind::kGradient) {
    return DecodeError::kOperation;
  }
  const auto type = LoadLittleEndian<std::uint8_t>(at + kTypeAt);
  if (!numeric::IsElementType(type)) return DecodeError::kType;
  decoded.type = static_cast<numeric::ElementType>(type);
  decoded.flags = LoadLittleEndian<std::uint8_t>(at + kFlagsAt);
  if ((decoded.flags & ~FlagsOf(decoded.kind)) != 0) return DecodeError::kReserved;
  const auto reduction = LoadLittleEndian<std::uint8_t>(at + kReductionAt);
  const bool reduces = IsPooled(decoded) && decoded.operation == RoundOperation::kPool;
  if (!numeric::IsReduction(reduction) || (reduction != 0 && !reduces)) {
    return DecodeError::kReserved;
  }
  const bool moves = decoded.operation == RoundOperation::kPoolMove;
  if (!moves && !AllZero(bytes.subspan(kReservedAt, kReservedBytes))) return DecodeError::kReserved;
  decoded.payload_bytes = LoadLittleEndian<std::uint32_t>(at + kPayloadBytesAt);
  if (decoded.payload_bytes > PayloadBytesMax(decoded.kind)) return DecodeError::kPayloadBytes;

  decoded.incarnation.value = LoadLittleEndian<std::uint64_t>(at + kIncarnationAt);
  decoded.iteration.value = LoadLittleEndian<std::uint64_t>(at + kIterationAt);
  decoded.membership_epoch.value = LoadLittleEndian<std::uint32_t>(at + kMembershipEpochAt);
  decoded.chunk.value = LoadLittleEndian<std::uint32_t>(at + kChunkAt);
  decoded.slot.value = LoadLittleEndian<std::uint32_t>(at + kSlotAt);
  if (IsPooled(decoded)) {
    decoded.pool = {.elements = LoadLittleEndian<std::uint64_t>(at + kElementsAt),
                    .sequence = LoadLittleEndian<std::uint32_t>(at + kSequenceAt),
                    .reduction = static_cast<numeric::Reduction>(reduction)};
    decoded.root.value = LoadLittleEndian<std::uint32_t>(at + kMoverAt);
  } else {
    decoded.hyper_version.value = LoadLittleEndian<std::uint32_t>(at + kRecordAt);
    decoded.key.value = LoadLittleEndian<std::uint32_t>(at + kKeyAt);
    decoded.root.value = LoadLittleEndian<std::uint32_t>(at + kRootAt);
  }
  (HasValue(decoded.kind) ? decoded.value_bits : decoded.reply_address.value) =
      LoadLittleEndian<std::uint64_t>(at + kReplyAddressAt);
  header = decoded;
  return DecodeError::kNone;
}

void EncodeHyperParameters(const HyperParameters& values,
                           std::span<std::byte, kHyperParametersBytes> bytes) {
  std::byte* at = bytes.data();
  for (const optimizer::Field& field : optimizer::kFields) {
    StoreDouble(values.*field.value, at);
    at += sizeof(double);
  }
  for (const double value : values.reserved) {
    StoreDouble(value, at);
    at += sizeof(double);
  }
}

bool DecodeHyperParameters(std::span<const std::byte> bytes, HyperParameters& values) {
  if (bytes.size() != kHyperParametersBytes) return false;
  HyperParameters decoded;
  const std::byte* at = bytes.data();
  for (const optimizer::Field& field : optimizer::kFields) {
    const double value = LoadDouble(at);
    if (!std::isfinite(value)) return false;
    decoded.*field.value = value;
    at += sizeof(double);
  }
  // All bits must be zero. -0 is rejected too: a later version may give it a meaning.
  constexpr std::size_t kReservedFieldsAt = optimizer::kFields.size() * sizeof(double);
  if (!AllZero(bytes.subspan(kReservedFieldsAt))) return false;
  values = decoded;
  return true;
}

}  // namespace phub::wire
