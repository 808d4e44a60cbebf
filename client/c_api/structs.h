// Structs of phub.h whose size depends on the version of the program (struct_size).
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "client/c_api/objects.h"

namespace phub::c_api {

// Copies `defaults` into the program's struct and zeroes what this library does not know.
template <typename Struct>
void Initialize(Struct* given, std::size_t struct_size, Struct defaults) {
  if (given == nullptr || struct_size < sizeof(std::size_t)) return;
  defaults.struct_size = struct_size;
  std::memset(static_cast<void*>(given), 0, struct_size);
  std::memcpy(static_cast<void*>(given), &defaults, std::min(struct_size, sizeof(Struct)));
}

// Reads the program's struct into `values`, which has the defaults. first_size: that of the first
// version.
template <typename Struct>
Status Read(const void* given, const char* name, std::size_t first_size, Struct& values) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof(size));
  if (size < first_size)
    return Invalid(
        fmt::format("{}.struct_size is {}, but a {} has at least {} bytes; call "
                    "{}_init() first",
                    name, size, name, first_size, name));
  const auto* const bytes = static_cast<const unsigned char*>(given);
  if (size > sizeof(Struct) &&
      std::any_of(bytes + sizeof(Struct), bytes + size, [](unsigned char b) { return b != 0; }))
    return Invalid(
        fmt::format("{} has fields that libphub {} does not know; install a newer "
                    "libphub",
                    name, Version()));
  std::memcpy(static_cast<void*>(&values), given, std::min(size, sizeof(Struct)));
  return Status();
}

// Checks a number that stands for an enumerator.
inline Status CheckChoice(const char* name, std::int32_t value, std::int32_t max) {
  if (value >= 0 && value <= max) return Status();
  return Invalid(fmt::format("{} is {}; it must be 0 to {}", name, value, max));
}

// PHUB_PRIORITY_DEFAULT: none.
inline Status ReadPriorityClass(std::int32_t given, std::optional<PriorityClass>& priority_class) {
  if (given != PHUB_PRIORITY_DEFAULT) priority_class = static_cast<PriorityClass>(given);
  return CheckChoice("priority_class", given, PHUB_PRIORITY_TENSOR);
}

// A type that does not exist is refused later.
inline ElementType TypeOf(std::int32_t type) {
  return type > 0 && type <= PHUB_U8 ? static_cast<ElementType>(type) : ElementType{};
}
inline Elements FromC(const phub_elements& elements) {
  return {elements.data, elements.count, TypeOf(elements.type)};
}
inline ConstElements FromC(const phub_const_elements& elements) {
  return {elements.data, elements.count, TypeOf(elements.type)};
}

// key.cc. Keys of a group or, without ranks, of the whole job.
struct Membership {
  std::span<const std::uint32_t> ranks = {};  // the group's
  std::uint32_t count = 0;
  std::uint32_t index = 0;  // this rank's
};
Status ReadKeySpecs(const phub_key_spec* given, std::size_t count, const Membership& members,
                    std::vector<KeySpec>& specs);
// Sets keys[0] to keys[count - 1].
Status Deliver(const Result<std::vector<Key>>& added, phub_key** keys);
// pool.cc
Status ReadPoolOptions(const char* function, const phub_pool_options* given, PoolOptions& options);

// optimizer.cc. optimizer: null for none.
Status ReadOptimizer(const phub_optimizer* optimizer, Optimizer& values);

}  // namespace phub::c_api
