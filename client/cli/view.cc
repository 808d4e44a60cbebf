// phubctl view set, show: the declared membership of a cluster.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>

#include "client/cli/cli.h"
#include "client/cli/output.h"
#include "client/cli/rpc.h"
#include "common/base/printable.h"
#include "common/view/view_file.h"
#include "common/view/view_message.h"
#include "common/view/view_toml.h"
#include "phub/v1/cluster.grpc.pb.h"

namespace phub::client::cli {
namespace {

using Stub = v1::Membership::Stub;

struct SetRequest {
  std::string file;
  std::string expected_text;
};

std::optional<std::int64_t> ParseNumber(const std::string& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

// The daemon has checked what it stored, but an answer may come from a newer one.
view::View PrintableView(const v1::View& message) {
  view::View view = view::FromMessage(message);
  for (view::Rack& rack : view.racks) rack.name = Printable(rack.name);
  for (std::string& name : view.aggregators) name = Printable(name);
  view.topology = PrintableLines(view.topology);
  return view;
}

std::string ViewText(const v1::View& message) {
  if (message.number() == 0) return "no view has been declared; see `phubctl view set --help`\n";
  return ViewToToml(PrintableView(message));
}

int SetView(const Options& options, const SetRequest& asked) {
  const auto view = view::ReadViewFile(asked.file);
  if (!view.ok()) return ReportError(view.status());
  v1::DeclareViewRequest request;
  *request.mutable_view() = view::ToMessage<v1::View>(*view);
  if (!asked.expected_text.empty()) request.set_expected(*ParseNumber(asked.expected_text));
  return ShowAnswer(options, kOnce, &Stub::DeclareView, request, [](const v1::View& declared) {
    return view::Describe(PrintableView(declared)) + "\n";
  });
}

int ShowView(const Options& options) {
  v1::ClusterInfo info;
  const grpc::Status status = Call(options, &Stub::GetCluster, v1::GetClusterRequest(), info);
  if (!status.ok()) return Report(status, options);
  if (!info.problem().empty()) {
    fmt::print(stderr, "phubctl: {}\n", Printable(info.problem()));
    return kFailure;
  }
  fmt::print("{}", options.output == Output::kJson ? ToJson(info.view(), /*compact=*/false)
                                                   : ViewText(info.view()));
  return info.view().number() == 0 ? kNotFound : kOk;
}

}  // namespace

void AddView(Subcommand parent, const Options& options, Command& command) {
  const Subcommand view =
      parent.AddSubcommand("view", "Declare the racks and daemons of a cluster");
  const Subcommand set = view.AddSubcommand("set", "Declare the next view from a file (TOML)");
  set.SetFooter(
      "Example of a file:\n"
      "  [[rack]]                  # in order: rack 0 opens jobs that span racks\n"
      "  name = \"north\"\n"
      "  daemons = 2               # places north/0 and north/1; the same in every rack\n"
      "  [[rack]]\n"
      "  name = \"south\"\n"
      "  daemons = 2\n"
      "Optional, before the first [[rack]]:\n"
      "  aggregators = [\"spine\"]   # daemons that only sum and forward, at spine/0 and spine/1\n"
      "  topology = \"links.toml\"   # a file next to this one, or \"probe\"\n"
      "\n"
      "Each change gives the view the next number; a file that changes nothing keeps it. Running\n"
      "daemons keep the view that they started with, so restart them afterwards.\n"
      "Exit codes: 1 the file cannot be read, or the view has another number than --expect; 2 the\n"
      "file is not valid.");
  const auto request = std::make_shared<SetRequest>();
  set.AddOption("FILE", request->file, "File with the view").Required().TypeName("");
  set.AddOption("--expect", request->expected_text,
                "Change the view only if it has this number now (0: none was declared)")
      .TypeName("NUMBER")
      .Check([](const std::string& text) {
        return ParseNumber(text) ? std::string()
                                 : fmt::format("\"{}\" is not the number of a view", text);
      });
  set.OnNamed([&, request] { command = [&, request] { return SetView(options, *request); }; });
  const Subcommand show =
      view.AddSubcommand("show", "Show the declared view as a file for `view set`");
  show.SetFooter("Exit codes: 3 no view has been declared.");
  show.OnNamed([&] { command = [&] { return ShowView(options); }; });
}

}  // namespace phub::client::cli
