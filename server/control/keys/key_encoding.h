// How the gradients of a key are encoded on the wire (common/base/encoding.h). Pure; any thread.
#pragma once

#include <string>

#include "common/base/encoding.h"
#include "phub/v1/keys.pb.h"
#include "server/core/job_shard.h"

namespace phub::server {

// What is wrong with the encoding of a key; empty: nothing. REQUIRES: the key is valid otherwise.
std::string WhyNotEncoded(const ShardConfig& config, const v1::KeySpec& key);
// REQUIRES: WhyNotEncoded() is empty.
numeric::GradientEncoding EncodingOf(const v1::KeySpec& key);
// "compression topk of 0.01", for messages. Any spec.
std::string DescribeEncoding(const v1::KeySpec& key);

}  // namespace phub::server
