// Headers of messages and their bytes.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "common/wire/message.h"

namespace phub::wire {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

// Every byte of every field differs, so that a field in the wrong place or order is detected.
inline MessageHeader DistinctHeader() {
  MessageHeader header;
  header.kind = MessageKind::kGradient;
  header.operation = RoundOperation::kAssign;
  header.payload_bytes = 0x00123456;
  header.incarnation = {0x1112131415161718};
  header.iteration = {0x2122232425262728};
  header.membership_epoch = {0x31323334};
  header.chunk = {0x41424344};
  header.slot = {0x51525354};
  header.hyper_version = {0x61626364};
  header.key = {0x71727374};
  header.root = {0x81828384};
  header.type = numeric::ElementType::kI64;
  header.reply_address = {0x9192939495969798};
  return header;
}

inline HeaderBytes Encoded(const MessageHeader& header) {
  HeaderBytes bytes;
  bytes.fill(std::byte{0xEE});
  EncodeHeader(header, bytes);
  return bytes;
}

inline DecodeError Decode(std::span<const std::byte> bytes) {
  MessageHeader header;
  return DecodeHeader(bytes, header);
}

}  // namespace phub::wire
