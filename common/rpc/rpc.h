// Describes an RPC of the control plane as a type: its path, its messages, its permitted callers
// and whether the audit log records it. rpcs.h lists all RPCs. This header needs neither protobuf
// nor gRPC: message types may be incomplete here. Constants; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace phub::rpc {

// Permitted callers as a bit set: bit r is role r of server/tenant/tenant.h, which asserts this.
using Callers = unsigned;
inline constexpr Callers kTenant = 1u << 1;
inline constexpr Callers kOperator = 1u << 2;
inline constexpr Callers kAdmin = 1u << 3;
inline constexpr Callers kServer = 1u << 4;  // another daemon
inline constexpr Callers kOperators = kOperator | kAdmin;
inline constexpr Callers kReaders = kTenant | kOperators;
inline constexpr Callers kEveryone = kReaders | kServer;  // every authenticated caller

// kYes: the audit log records each call, including refused calls.
enum class Audit : bool { kNo, kYes };

enum class Kind : std::uint8_t { kUnary, kClientStream, kServerStream, kBothStreams };

template <std::size_t kSize>
struct Text {  // a string that can be a template argument
  char characters[kSize];
  constexpr Text(const char (&text)[kSize]) { std::copy_n(text, kSize, characters); }
};

template <Text kPathText, typename RequestType, typename ResponseType, Callers kCallersBits,
          Audit kAuditValue = Audit::kNo, Kind kKindValue = Kind::kUnary>
struct Rpc {
  using Request = RequestType;
  using Response = ResponseType;
  static constexpr const char* kPath = kPathText.characters;  // "/phub.v1.Session/Join"
  static constexpr std::string_view kMethod = std::string_view(kPath).substr(1);
  static constexpr Callers kCallers = kCallersBits;
  static constexpr bool kAudited = kAuditValue == Audit::kYes;
  static constexpr Kind kKind = kKindValue;
  static_assert(kPathText.characters[0] == '/');
  static_assert(kCallers != 0, "the RPC has no permitted caller");
};

template <typename... Rpcs>
struct List {
  static constexpr std::size_t kCount = sizeof...(Rpcs);
  // Calls visit.operator()<Rpc>() for each RPC.
  template <typename Visit>
  static constexpr void ForEach(const Visit& visit) {
    (visit.template operator()<Rpcs>(), ...);
  }
};

template <typename... Lists>
struct Joined;
template <typename... Rpcs>
struct Joined<List<Rpcs...>> {
  using Type = List<Rpcs...>;
};
template <typename... First, typename... Second, typename... Rest>
struct Joined<List<First...>, List<Second...>, Rest...> {
  using Type = typename Joined<List<First..., Second...>, Rest...>::Type;
};

}  // namespace phub::rpc
