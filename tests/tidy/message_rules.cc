#include <map>
#include <set>

#include "tests/tidy/rules.h"

namespace phub::tidy {
namespace {

constexpr std::string_view kProtoFolder = "proto/";
constexpr std::string_view kNamespace = "v1::";
// A macro's list; those who expand it include what they need.
constexpr std::string_view kListOfRpcs = "common/rpc";

bool IsName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

std::string_view NameAt(std::string_view text) {
  std::size_t end = 0;
  while (end < text.size() && IsName(text[end])) ++end;
  return text.substr(0, end);
}

// What a line names in quotes: #include "a.h", import "a.proto".
std::string_view Quoted(std::string_view line) {
  const std::size_t begin = line.find('"');
  if (begin == line.npos) return {};
  const std::size_t end = line.find('"', begin + 1);
  return end == line.npos ? std::string_view() : line.substr(begin + 1, end - begin - 1);
}

// "phub/v1/peer" for proto/phub/v1/peer.proto, phub/v1/peer.pb.h and phub/v1/peer.grpc.pb.h.
std::string_view StemOf(std::string_view path) {
  if (path.starts_with(kProtoFolder)) path.remove_prefix(kProtoFolder.size());
  for (const std::string_view end : {".grpc.pb.h", ".pb.h", ".proto"}) {
    if (path.ends_with(end)) return path.substr(0, path.size() - end.size());
  }
  return path;
}

struct Sources {
  std::map<std::string_view, std::vector<std::string_view>> includes;  // by path or stem
  std::map<std::string_view, std::string_view> stem_of_name;           // messages and enumerations
};

Sources Read(const std::vector<SourceFile>& files) {
  Sources sources;
  for (const SourceFile& file : files) {
    const bool is_proto = file.path.ends_with(".proto");
    if (!is_proto && !IsCpp(file.path)) continue;
    std::vector<std::string_view>& includes = sources.includes[StemOf(file.path)];
    for (const std::string_view line : Lines(file.text)) {
      if (line.starts_with("#include") || line.starts_with("import")) {
        includes.push_back(StemOf(Quoted(line)));
      }
      if (!is_proto) continue;
      for (const std::string_view kind : {"message ", "enum "}) {
        if (line.starts_with(kind)) {
          sources.stem_of_name[NameAt(line.substr(kind.size()))] = StemOf(file.path);
        }
      }
    }
  }
  return sources;
}

void Reach(const Sources& sources, std::string_view from, std::set<std::string_view>& reached) {
  if (!reached.insert(from).second) return;
  const auto found = sources.includes.find(from);
  if (found == sources.includes.end()) return;
  for (const std::string_view each : found->second) Reach(sources, each, reached);
}

}  // namespace

std::vector<std::string> CheckMessagesAreIncluded(const std::vector<SourceFile>& files) {
  std::vector<std::string> findings;
  const Sources sources = Read(files);
  for (const SourceFile& file : files) {
    if (!IsCpp(file.path) || IsInFolder(file.path, kListOfRpcs)) continue;
    std::set<std::string_view> reached;
    Reach(sources, file.path, reached);
    const std::string code = CodeOnly(file.text);
    std::set<std::string_view> missing;
    for (std::size_t at = code.find(kNamespace); at != code.npos;
         at = code.find(kNamespace, at + 1)) {
      if (at > 0 && IsName(code[at - 1])) continue;
      const auto name =
          sources.stem_of_name.find(NameAt(std::string_view(code).substr(at + kNamespace.size())));
      if (name == sources.stem_of_name.end() || reached.contains(name->second)) continue;
      if (!missing.insert(name->second).second) continue;
      findings.push_back(file.path + " names v1::" + std::string(name->first) +
                         ", but does not include " + std::string(name->second) + ".pb.h");
    }
  }
  return findings;
}

}  // namespace phub::tidy
