// Encodes the gradients of a key for each push (phub/compression.h). Owned by the key; one thread
// at a time.
#pragma once

#include <cstdint>

#include "client/session/key_definition.h"
#include "common/simd/encode.h"

namespace phub::client {

class GradientEncoder {
 public:
  // REQUIRES: an encoding. The definition must outlive the encoder.
  GradientEncoder(const KeyDefinition& definition, KeyIndex index)
      : definition_(definition), index_(index) {}

  // Encodes all gradients of the key into KeyDefinition::encoded, for the round that makes version
  // `iteration`. skips: their effect is discarded, so the residual stays.
  void Encode(const float* gradients, std::uint64_t iteration, bool skips);

 private:
  const KeyDefinition& definition_;
  const KeyIndex index_;
  simd::EncodeScratch scratch_;
};

}  // namespace phub::client
