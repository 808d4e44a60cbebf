#include <algorithm>
#include <array>
#include <optional>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

// A folder and the other folders that it may include. The first entry that contains a file applies.
struct Layer {
  std::string_view folder;
  std::vector<std::string_view> may_include;
};

const std::vector<Layer>& Layers() {
  static const std::vector<Layer> layers = {
      {"common/base", {}},
      {"common/net", {"common/base"}},
      {"common/tls", {"common/base"}},
      {"common/optimizer", {"common/base"}},
      {"common/http", {"common/base", "common/net"}},
      {"common/rpc", {}},
      {"common/wire", {"common/base", "common/optimizer"}},
      {"common/simd", {"common/base", "common/optimizer", "common/aggregation"}},
      {"common/plan", {"common/base"}},
      {"common/view", {"common/base", "common/plan"}},
      {"common/checkpoint", {"common/base"}},
      {"common/aggregation", {"common/base"}},
      {"common/transport",
       {"common/base", "common/net", "common/wire", "common/simd", "common/plan"}},
      {"aggregator",
       {"common/base", "common/net", "common/tls", "common/http", "common/aggregation"}},
      {"server",
       {"common/base", "common/net", "common/tls", "common/http", "common/optimizer", "common/rpc",
        "common/wire", "common/simd", "common/plan", "common/view", "common/aggregation",
        "common/transport"}},
      {"client/include", {}},
      {"client/cli", {"common", "client"}},
      {"client/examples", {}},
      {"client", {"common"}},
  };
  return layers;
}

// Folders that an include may name; others belong to third parties.
constexpr std::array<std::string_view, 9> kTreeFolders = {
    "common", "server", "client", "aggregator", "tests", "bench", "proto", "deploy", "cmake"};
// Each folder in here is a stage of the core loop, except two that know the stages: loop, and
// rounds, which also knows loop.
constexpr std::string_view kStagesFolder = "server/core/";
constexpr std::string_view kLoopFolder = "server/core/loop";
constexpr std::string_view kRoundsFolder = "server/core/rounds";
constexpr std::array<std::string_view, 10> kControlFolders = {
    "aggregator",        "common/tls/grpc", "server/control", "server/etcd", "client/session",
    "client/checkpoint", "client/cli",      "tests",          "proto",       "bench"};
constexpr std::array<std::string_view, 2> kVerbsFolders = {"common/transport/verbs", "tests/verbs"};
constexpr std::array<std::string_view, 3> kBpfFolders = {"aggregator/xdp", "bench/box",
                                                         "bench/wire"};

// Control's rooms from the bottom up, each a folder. server/control itself has what all rooms use,
// and Control, which only the last two rooms see.
constexpr std::string_view kControlFolder = "server/control/";
constexpr std::array<std::string_view, 9> kRooms = {
    "jobs", "lanes", "keys", "ranks", "checkpoint", "racks", "admin", "ports", "rpc"};
constexpr std::size_t kRoomsBelowControl = 7;
constexpr std::array<std::string_view, 2> kWholeControl = {"control", "parts"};  // file names

// C++20's headers, and the C library's under their C++ names.
constexpr std::string_view kStandardHeaders =
    " algorithm any array atomic barrier bit bitset cassert ccomplex cctype cerrno cfenv cfloat "
    "charconv chrono cinttypes climits clocale cmath codecvt compare complex concepts "
    "condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring "
    "ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream "
    "functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits "
    "list locale map memory memory_resource mutex new numbers numeric optional ostream queue "
    "random ranges ratio regex scoped_allocator semaphore set shared_mutex source_location span "
    "sstream stack stdexcept stop_token streambuf string string_view syncstream system_error "
    "thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility valarray "
    "variant vector version ";

struct Include {
  std::size_t line = 0;
  std::string_view target;
  bool angled = false;
};

std::vector<Include> Includes(std::string_view text) {
  std::vector<Include> includes;
  const std::vector<std::string_view> lines = Lines(text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    const auto skip = [&] {
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    };
    skip();
    if (!line.starts_with('#')) continue;
    line.remove_prefix(1);
    skip();
    if (!line.starts_with("include")) continue;
    line.remove_prefix(7);
    skip();
    if (line.empty() || (line[0] != '"' && line[0] != '<')) continue;
    const std::size_t end = line.find(line[0] == '<' ? '>' : '"', 1);
    if (end == std::string_view::npos) continue;
    includes.push_back({i + 1, line.substr(1, end - 1), line[0] == '<'});
  }
  return includes;
}

template <std::size_t N>
bool IsInAny(std::string_view path, const std::array<std::string_view, N>& folders) {
  return std::any_of(folders.begin(), folders.end(),
                     [&](std::string_view folder) { return IsInFolder(path, folder); });
}

std::optional<std::string> LayerBroken(std::string_view path, std::string_view target) {
  if (!IsInAny(target, kTreeFolders)) return std::nullopt;
  for (const Layer& layer : Layers()) {
    if (!IsInFolder(path, layer.folder)) continue;
    const bool allowed =
        IsInFolder(target, layer.folder) ||
        std::any_of(layer.may_include.begin(), layer.may_include.end(),
                    [&](std::string_view folder) { return IsInFolder(target, folder); });
    const bool example = IsInFolder(target, "client/examples") && layer.folder != "client/examples";
    if (allowed && !example) return std::nullopt;
    return std::string(layer.folder) + " must not include " + std::string(target);
  }
  return std::nullopt;
}

// "server/core/ingest" for a file in it; empty for files in no stage.
std::string_view StageOf(std::string_view path) {
  if (!path.starts_with(kStagesFolder)) return {};
  const std::size_t end = path.find('/', kStagesFolder.size());
  return end == std::string_view::npos ? std::string_view() : path.substr(0, end);
}

std::optional<std::string> StageBroken(std::string_view path, std::string_view target) {
  const std::string_view stage = StageOf(path);
  const std::string_view other = StageOf(target);
  if (stage.empty() || other.empty() || stage == other) return std::nullopt;
  if (stage == kRoundsFolder) return std::nullopt;
  if (stage == kLoopFolder && other != kRoundsFolder) return std::nullopt;
  return "stage " + std::string(stage) + " must not include " + std::string(target) +
         ": only the core loop knows the stages' order";
}

// 0-based; kRooms.size() for a folder that is not a room; nothing for files outside of
// server/control.
std::optional<std::size_t> RoomOf(std::string_view path) {
  if (!path.starts_with(kControlFolder)) return std::nullopt;
  const std::string_view rest = path.substr(kControlFolder.size());
  const std::size_t end = rest.find('/');
  if (end == std::string_view::npos) return std::nullopt;
  return static_cast<std::size_t>(std::find(kRooms.begin(), kRooms.end(), rest.substr(0, end)) -
                                  kRooms.begin());
}

// server/control/control.h and the like.
bool IsWholeControl(std::string_view path) {
  if (!path.starts_with(kControlFolder)) return false;
  const std::string_view name = path.substr(kControlFolder.size());
  return std::any_of(kWholeControl.begin(), kWholeControl.end(), [&](std::string_view each) {
    return name.starts_with(each) && name.substr(each.size()).starts_with('.');
  });
}

std::optional<std::string> RoomBroken(std::string_view path, std::string_view target) {
  const std::optional<std::size_t> room = RoomOf(path);
  const std::optional<std::size_t> other = RoomOf(target);
  const bool is_root = path.starts_with(kControlFolder) && !room;
  if (room == kRooms.size()) return std::string(path) + " is in no room that kRooms names";
  if (is_root && other && !IsWholeControl(path)) {
    return "what all rooms use must not include " + std::string(target);
  }
  if (!room) return std::nullopt;
  if (other && *other > *room) {
    return std::string(kRooms[*room]) + " must not include " + std::string(target) +
           ", which lies above it";
  }
  if (*room < kRoomsBelowControl && IsWholeControl(target)) {
    return std::string(kRooms[*room]) + " must not include " + std::string(target) +
           ": a part does not know the whole";
  }
  return std::nullopt;
}

// Only the daemon, which is put together in server itself, knows which transports there are.
std::optional<std::string> TransportsBroken(std::string_view path, std::string_view target) {
  constexpr std::string_view kTransports = "server/transports";
  const bool is_room = path.starts_with("server/") && path.substr(7).find('/') != path.npos;
  if (!is_room || IsInFolder(path, kTransports) || !IsInFolder(target, kTransports))
    return std::nullopt;
  return std::string(target) + ": only the files of server itself may include transports";
}

std::optional<std::string> ControlBroken(std::string_view path, std::string_view target) {
  const bool control = target.starts_with("grpc") || target.starts_with("google/protobuf") ||
                       target.ends_with(".pb.h");
  if (!control || IsInAny(path, kControlFolders)) return std::nullopt;
  return "protobuf and gRPC stop at aggregator, common/tls/grpc, server/control, server/etcd, "
         "client/session, client/checkpoint and client/cli: " +
         std::string(target);
}

std::optional<std::string> MachineBroken(std::string_view path, std::string_view target) {
  const bool verbs = target.starts_with("infiniband/") || target.starts_with("rdma/");
  if (verbs && !IsInAny(path, kVerbsFolders))
    return std::string(target) + " belongs to " + std::string(kVerbsFolders[0]) + " only";
  if (target.starts_with("bpf/") && !IsInAny(path, kBpfFolders))
    return std::string(target) + " belongs to " + std::string(kBpfFolders[0]) +
           " and to programs of the bench only";
  const bool intrinsics = target.ends_with("intrin.h") || target == "arm_neon.h" ||
                          target == "arm_sve.h" || target == "arm_acle.h" ||
                          target == "altivec.h" || target == "riscv_vector.h";
  if (intrinsics) return std::string(target) + ": intrinsics nowhere, use Highway";
  return std::nullopt;
}

std::optional<std::string> PublicBroken(std::string_view path, const Include& include) {
  if (!IsInFolder(path, "client/include")) return std::nullopt;
  const bool own = include.target.starts_with("phub/");
  const bool standard = include.angled && kStandardHeaders.find(" " + std::string(include.target) +
                                                                " ") != std::string_view::npos;
  // Some of them are for C, too.
  const bool c = include.target == "stddef.h" || include.target == "stdint.h";
  if (own || standard || c) return std::nullopt;
  return "public headers include themselves and the standard library, not " +
         std::string(include.target);
}

}  // namespace

Findings CheckIncludes(const SourceFile& file) {
  Findings findings;
  if (!IsCpp(file.path)) return findings;
  for (const Include& include : Includes(file.text)) {
    const auto add = [&](const char* rule, const std::optional<std::string>& broken) {
      if (broken) findings.push_back({include.line, rule, *broken});
    };
    add("layers", LayerBroken(file.path, include.target));
    add("stages", StageBroken(file.path, include.target));
    add("rooms", RoomBroken(file.path, include.target));
    add("transports", TransportsBroken(file.path, include.target));
    add("control", ControlBroken(file.path, include.target));
    add("machine", MachineBroken(file.path, include.target));
    add("public", PublicBroken(file.path, include));
  }
  return findings;
}

}  // namespace phub::tidy
