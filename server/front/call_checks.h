// What the front decides about a call from its headers alone, and the answers that it gives itself.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/front/h2_session.h"

namespace phub::server {

// The headers of an answer that refuses the call: status and message of gRPC in one block.
HeaderList RefusalHeaders(std::uint32_t code, std::string_view message);
HeaderList AnswerHeaders();  // before messages
HeaderList StatusTrailers(std::uint32_t code);

// Nothing: the call may pass. Otherwise the headers of the answer that refuses it.
std::optional<HeaderList> RefusalOf(const ReceivedHeaders& received);

// Removes headers with which proxies name callers: only the front itself may do so.
void StripIdentity(HeaderList& headers);

enum class HealthCall { kNone, kCheck, kWatch };
HealthCall HealthCallOf(const HeaderList& headers);
// The service that a gRPC message with a HealthCheckRequest names; nullopt: not such a message.
std::optional<std::string> HealthServiceOf(std::string_view message);
// A gRPC message with a HealthCheckResponse.
enum class HealthStatus : std::uint8_t { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
std::string HealthMessage(HealthStatus status);

}  // namespace phub::server
