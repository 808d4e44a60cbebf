// What an RPC of the control plane is to the compiler: a type that names its path, its messages,
// who may call it and whether the audit log has it. rpcs.h is the list of all. No protobuf and no
// gRPC: messages may be incomplete here. Constants; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace phub::rpc {

// Who may call, as bits: the roles of server/tenant/tenant.h, which checks that bit r is role r's.
using Callers = unsigned;
inline constexpr Callers kTenant = 1u << 1;
inline constexpr Callers kOperator = 1u << 2;
inline constexpr Callers kAdmin = 1u << 3;
inline constexpr Callers kServer = 1u << 4;  // another daemon
inline constexpr Callers kOperators = kOperator | kAdmin;
inline constexpr Callers kReaders = kTenant | kOperators;
inline constexpr Callers kEveryone = kReaders | kServer;  // with an identity

// An administrative change is in the audit log, refused or not.
enum class Audit : bool { kNo, kYes };

enum class Kind : std::uint8_t { kUnary, kClientStream, kServerStream, kBothStreams };

template <std::size_t kSize>
struct Text {  // as a template argument
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
  static_assert(kCallers != 0, "an RPC that nobody may call");
};

template <typename... Rpcs>
struct List {
  static constexpr std::size_t kCount = sizeof...(Rpcs);
  // visit.operator()<Rpc>() of each.
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
