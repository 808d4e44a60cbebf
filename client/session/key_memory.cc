#include "client/session/key_memory.h"

#include <fmt/core.h>

#include <cerrno>

#include "common/base/shortage.h"

namespace phub::client {
namespace {

constexpr std::uint64_t kPieceAlignment = 64;  // a cache line; two keys never share one
// Large pieces start on a page, so that a program can map one of them at a second address.
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLargePiece = std::uint64_t{1} << 18;

std::uint64_t AddPiece(std::uint64_t bytes, std::uint64_t& total) {
  if (bytes >= kLargePiece) total = (total + kPage - 1) / kPage * kPage;
  const std::uint64_t offset = total;
  total += (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  return offset;
}

// Takes a part of this rank's region, or allocates private pages.
Status TakeOwn(const KeyDefinition& key, const char* what, std::uint64_t bytes,
               std::span<std::byte> region, std::uint64_t offset, MappedMemory& pages,
               std::byte*& memory) {
  if (bytes == 0) return Status();
  if (!region.empty() && offset != kNowhere) {
    if (offset > region.size() || bytes > region.size() - offset)
      return Status(
          StatusCode::kInternal,
          fmt::format(
              "the shared memory for the {} of key {} is too small: it has {} bytes, but {} "
              "are needed",
              what, key.name, region.size(), offset + bytes));
    memory = region.data() + offset;
    return Status();
  }
  pages = MappedMemory::Allocate(bytes, MappedMemory::Backing::kOnTouch);
  if (!pages)
    return Status(StatusCode::kResourceExhausted,
                  fmt::format("cannot allocate {} bytes for the {} of key {}: {}", bytes, what,
                              key.name, MemoryErrorText(ENOMEM)));
  memory = pages.data();
  return Status();
}
Status TakeOwn(const KeyDefinition& key, const char* what, std::uint64_t bytes,
               std::span<std::byte> region, std::uint64_t offset, MappedMemory& pages,
               Elements& elements) {
  std::byte* memory = nullptr;
  Status status = TakeOwn(key, what, bytes, region, offset, pages, memory);
  if (status.ok()) elements.data = memory;
  return status;
}

// True if the key uses the shared parameters when they exist.
bool MayShareParameters(const KeyDefinition& key) {
  return !key.copy && !std::holds_alternative<None>(key.optimizer) &&
         key.own_parameters_offset == kNowhere;
}

}  // namespace

std::uint64_t PlanOwnMemory(std::span<KeyDefinition> keys, bool parameters_shared) {
  std::uint64_t total = 0;
  for (KeyDefinition& key : keys) {
    // Of encoded gradients, the daemon reads what they are encoded to.
    if (!key.encoding.none())
      key.own_encoded_offset = AddPiece(key.encoded_bytes(), total);
    else if (key.gradients.data == nullptr)
      key.own_gradients_offset = AddPiece(key.gradients_bytes(), total);
    if (key.parameters.data == nullptr && !(parameters_shared && MayShareParameters(key)))
      key.own_parameters_offset = AddPiece(key.parameters_bytes(), total);
  }
  return total;
}

Status TakeMemory(KeyDefinition& key, const BatchMemory& memory, std::uint64_t shared_offset) {
  key.shared_memory = memory.owner;
  if (key.gradients.data == nullptr) {
    Status status = TakeOwn(key, "gradients", key.gradients_bytes(), memory.own,
                            key.own_gradients_offset, key.owned_gradients, key.gradients);
    if (!status.ok()) return status;
  }
  if (!key.encoding.none()) {
    Status status = TakeOwn(key, "compressed gradients", key.encoded_bytes(), memory.own,
                            key.own_encoded_offset, key.owned_encoded, key.encoded);
    if (!status.ok()) return status;
    std::byte* residual = nullptr;
    if (key.error_feedback)
      status = TakeOwn(key, "error feedback", key.element_count * sizeof(float), {}, kNowhere,
                       key.residual, residual);
    if (!status.ok()) return status;
  }
  if (key.parameters.data != nullptr) return Status();
  if (memory.parameters.empty() || !MayShareParameters(key))
    return TakeOwn(key, "parameters", key.parameters_bytes(), memory.own, key.own_parameters_offset,
                   key.owned_parameters, key.parameters);
  // The offset comes from the daemon: check it before the caller receives a view.
  if (shared_offset > memory.parameters.size() ||
      key.parameters_bytes() > memory.parameters.size() - shared_offset ||
      shared_offset % numeric::ElementBytes(key.parameter_type) != 0)
    return Status(
        StatusCode::kInternal,
        fmt::format("the daemon shares {} bytes of parameters, but placed the {} bytes "
                    "of key {} at offset {}",
                    memory.parameters.size(), key.parameters_bytes(), key.name, shared_offset));
  // Never written: callers receive const views, and the mapping is read-only.
  key.parameters.data = const_cast<std::byte*>(memory.parameters.data()) + shared_offset;
  key.parameters_shared = true;
  return Status();
}

}  // namespace phub::client
