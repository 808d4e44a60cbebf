#include "common/plan/sketches/taccl_profile.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "common/base/printable.h"
#include "common/plan/json_reader.h"
#include "fmt/format.h"

namespace phub::plan {
namespace {

constexpr std::int64_t kDecimals = 1'000'000;  // costs are rounded to millionths
constexpr double kCostMax = 1e9;

struct ModelName {
  NodeModel model;
  std::string_view name;
};
constexpr std::array kModels = {
    ModelName{NodeModel::kNdv2, "NDv2"}, ModelName{NodeModel::kDgx2, "DGX2"},
    ModelName{NodeModel::kHubAndSpoke, "HubAndSpoke"}, ModelName{NodeModel::kCustom, "custom"}};

bool IsSameWord(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// The links of an NDv2, by receiver and sender: 0 none, 1 in node_betas_list[0], 2 in [1].
constexpr std::uint8_t kNdv2Links[8][8] = {{0, 1, 2, 2, 1, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                                           {2, 2, 0, 1, 0, 0, 1, 0}, {2, 1, 1, 0, 0, 0, 0, 2},
                                           {1, 0, 0, 0, 0, 1, 2, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                           {0, 0, 1, 0, 2, 2, 0, 1}, {0, 0, 0, 2, 2, 1, 1, 0}};

absl::StatusOr<Rational> CostOf(const Json& value, std::string_view where) {
  const double cost = value.is_number() ? value.get<double>() : 0;
  if (!(cost > 0)) return JsonError(where, "must be a number above 0");
  if (!(cost <= kCostMax)) return JsonError(where, fmt::format("must be at most {:g}", kCostMax));
  const auto rounded =
      Rational::Make(std::llround(cost * static_cast<double>(kDecimals)), kDecimals);
  if (!rounded || rounded->numerator() == 0)
    return JsonError(where, fmt::format("must be at least 1/{}", kDecimals));
  return *rounded;
}

absl::StatusOr<const Json*> Existing(const Json& root, const char* field, std::string_view why) {
  const auto found = root.find(field);
  if (found == root.end()) return JsonError(field, fmt::format("is missing; {}", why));
  return &*found;
}

absl::StatusOr<Rational> CostField(const Json& root, const char* field, std::string_view why) {
  const absl::StatusOr<const Json*> value = Existing(root, field, why);
  if (!value.ok()) return value.status();
  return CostOf(**value, field);
}

// `invbw` repeats alpha + beta. TACCL rounds it down to an integer, and profiles are rounded too.
absl::Status CheckSum(const Rational& invbw, const Rational& alpha, const Rational& beta,
                      std::string_view where, std::string_view sum) {
  const double expected = alpha.ToDouble() + beta.ToDouble();
  if (std::abs(invbw.ToDouble() - expected) <= 1) return absl::OkStatus();
  return JsonError(where, fmt::format("is {:g}, but {} is {:g}; they must agree within 1",
                                      invbw.ToDouble(), sum, expected));
}

class ProfileReader {
 public:
  explicit ProfileReader(const TacclUnits& units) : units_(units) {}

  absl::StatusOr<TacclProfile> Read(const Json& root) {
    if (absl::Status status =
            CheckObject(root, "",
                        {"name", "gpus_per_node", "nics_per_node", "alpha", "node_betas_list",
                         "node_invbws_list", "links", "betas", "invbws", "remote_alpha",
                         "remote_beta", "remote_invbw"});
        !status.ok())
      return status;
    if (absl::Status status = ReadHead(root); !status.ok()) return status;
    if (absl::Status status = ReadRemote(root); !status.ok()) return status;
    const absl::StatusOr<NodeModel> model = ModelOf(root);
    if (!model.ok()) return model.status();
    profile_.betas.assign(std::size_t{profile_.gpus} * profile_.gpus, Rational());
    const absl::Status links =
        *model == NodeModel::kCustom ? ReadMatrices(root) : ReadLists(root, *model);
    if (!links.ok()) return links;
    return std::move(profile_);
  }

 private:
  absl::Status ReadHead(const Json& root) {
    const absl::StatusOr<std::string> name = StringField(root, "", "name");
    if (!name.ok()) return name.status();
    profile_.name = Printable(*name, 100);
    const absl::StatusOr<std::int64_t> gpus =
        IntegerField(root, "", "gpus_per_node", 1, kGpusPerNodeMax);
    if (!gpus.ok()) return gpus.status();
    profile_.gpus = static_cast<std::uint32_t>(*gpus);
    const absl::StatusOr<Rational> alpha =
        CostField(root, "alpha", "it is the latency of links within a node");
    if (!alpha.ok()) return alpha.status();
    profile_.alpha = *alpha;
    ReadUnits();
    return absl::OkStatus();
  }

  void ReadUnits() {
    const std::string_view name = profile_.name;
    const std::string_view suffix =
        name.find('_') == std::string_view::npos ? "" : name.substr(name.rfind('_') + 1);
    std::string_view amount = suffix;  // of "1MB", which has 1024 KB here
    const bool is_binary =
        amount.ends_with("KB") || amount.ends_with("MB") || amount.ends_with("GB");
    if (is_binary) amount.remove_suffix(1);
    const auto bytes = ParseBytes(fmt::format("{}{}", amount, is_binary ? "iB" : ""));
    const bool is_size = bytes && *bytes >= 1 && *bytes <= (std::uint64_t{1} << 40);
    profile_.chunk_bytes =
        units_.chunk_bytes.value_or(is_size ? static_cast<std::int64_t>(*bytes) : 1 << 20);
    profile_.time_unit_ns = units_.time_unit_ns.value_or(suffix == "1KB"    ? 10
                                                         : suffix == "32KB" ? 100
                                                                            : 1000);
  }

  absl::Status ReadRemote(const Json& root) {
    constexpr std::string_view kWhy =
        "a profile with nics_per_node or a remote cost needs all four";
    constexpr std::array kFields = {"nics_per_node", "remote_alpha", "remote_beta", "remote_invbw"};
    const bool has_any = std::any_of(kFields.begin(), kFields.end(),
                                     [&](const char* field) { return root.contains(field); });
    if (!has_any) return absl::OkStatus();
    if (const auto nics = Existing(root, kFields[0], kWhy); !nics.ok()) return nics.status();
    const absl::StatusOr<std::int64_t> nics = IntegerField(root, "", kFields[0], 1, 4096);
    if (!nics.ok()) return nics.status();
    const absl::StatusOr<Rational> alpha = CostField(root, kFields[1], kWhy);
    if (!alpha.ok()) return alpha.status();
    const absl::StatusOr<Rational> beta = CostField(root, kFields[2], kWhy);
    if (!beta.ok()) return beta.status();
    const absl::StatusOr<Rational> invbw = CostField(root, kFields[3], kWhy);
    if (!invbw.ok()) return invbw.status();
    profile_.remote = {static_cast<std::uint32_t>(*nics), *alpha, *beta};
    return CheckSum(*invbw, *alpha, *beta, kFields[3], "remote_alpha + remote_beta");
  }

  absl::StatusOr<NodeModel> ModelOf(const Json& root) const {
    if (units_.model) return *units_.model;
    if (root.contains("links")) return NodeModel::kCustom;
    const std::string_view name =
        std::string_view(profile_.name).substr(0, profile_.name.find('_'));
    for (const ModelName& known : kModels)
      if (IsSameWord(name, known.name)) return known.model;
    return JsonError("name", fmt::format("'{}' does not begin with NDv2_, DGX2_ or HubAndSpoke_, "
                                         "and there is no field 'links'; pass --node",
                                         profile_.name));
  }

  absl::Status CheckModel(NodeModel model) const {
    const bool is_ndv2 = model == NodeModel::kNdv2;
    const std::uint32_t gpus = is_ndv2 ? 8 : 16, nics = is_ndv2 ? 1 : 8;
    const std::string_view name = is_ndv2 ? "an NDv2" : "a DGX2";
    if (profile_.gpus != gpus)
      return JsonError("gpus_per_node",
                       fmt::format("is {}, but {} has {}", profile_.gpus, name, gpus));
    if (profile_.remote && profile_.remote->nics != nics)
      return JsonError("nics_per_node",
                       fmt::format("is {}, but {} has {}", profile_.remote->nics, name, nics));
    return absl::OkStatus();
  }

  absl::Status ReadLists(const Json& root, NodeModel model) {
    for (const char* field : {"links", "betas", "invbws"})
      if (root.contains(field)) return JsonError(field, "is only for nodes of the kind custom");
    if (model != NodeModel::kHubAndSpoke)
      if (absl::Status status = CheckModel(model); !status.ok()) return status;
    const std::size_t count = model == NodeModel::kNdv2 ? 2 : 1;
    std::vector<Rational> betas;
    const absl::StatusOr<const Json*> list = ListOf(root, "node_betas_list", count);
    if (!list.ok()) return list.status();
    const absl::StatusOr<const Json*> sums = ListOf(root, "node_invbws_list", count);
    if (!sums.ok()) return sums.status();
    for (std::size_t i = 0; i < count; ++i) {
      const absl::StatusOr<Rational> beta =
          CostOf((**list)[i], fmt::format("node_betas_list[{}]", i));
      if (!beta.ok()) return beta.status();
      betas.push_back(*beta);
      const std::string where = fmt::format("node_invbws_list[{}]", i);
      const absl::StatusOr<Rational> invbw = CostOf((**sums)[i], where);
      if (!invbw.ok()) return invbw.status();
      const std::string sum = fmt::format("alpha + node_betas_list[{}]", i);
      if (absl::Status status = CheckSum(*invbw, profile_.alpha, *beta, where, sum); !status.ok())
        return status;
    }
    for (std::uint32_t to = 0; to < profile_.gpus; ++to)
      for (std::uint32_t from = 0; from < profile_.gpus; ++from) {
        const int link = model == NodeModel::kNdv2 ? kNdv2Links[to][from] : to == from ? 0 : 1;
        if (link > 0) BetaAt(to, from) = betas[static_cast<std::size_t>(link) - 1];
      }
    return absl::OkStatus();
  }

  static absl::StatusOr<const Json*> ListOf(const Json& root, const char* field,
                                            std::size_t count) {
    const auto why =
        fmt::format("it must be a list of {} cost(s), one for each kind of link", count);
    const absl::StatusOr<const Json*> list = Existing(root, field, why);
    if (!list.ok()) return list.status();
    if (!(*list)->is_array() || (*list)->size() != count) return JsonError(field, why);
    return *list;
  }

  absl::Status ReadMatrices(const Json& root) {
    for (const char* field : {"node_betas_list", "node_invbws_list"})
      if (root.contains(field)) return JsonError(field, "is not for nodes of the kind custom");
    for (const char* field : {"links", "betas", "invbws"})
      if (absl::Status status = CheckMatrix(root, field); !status.ok()) return status;
    for (std::uint32_t to = 0; to < profile_.gpus; ++to)
      for (std::uint32_t from = 0; from < profile_.gpus; ++from)
        if (absl::Status status = ReadEntry(root, to, from); !status.ok()) return status;
    return absl::OkStatus();
  }

  absl::Status CheckMatrix(const Json& root, const char* field) const {
    const auto why = fmt::format("it must be a list of {0} lists of {0} numbers", profile_.gpus);
    const absl::StatusOr<const Json*> matrix = Existing(root, field, why);
    if (!matrix.ok()) return matrix.status();
    if (!(*matrix)->is_array() || (*matrix)->size() != profile_.gpus) return JsonError(field, why);
    for (const Json& row : **matrix)
      if (!row.is_array() || row.size() != profile_.gpus) return JsonError(field, why);
    return absl::OkStatus();
  }

  absl::Status ReadEntry(const Json& root, std::uint32_t to, std::uint32_t from) {
    const std::string place = fmt::format("[{}][{}]", to, from);
    const Json& links = root["links"][to][from];
    const double most = to == from ? 0 : 1024;
    if (!links.is_number_integer() || !(links.get<double>() >= 0) || links.get<double>() > most)
      return JsonError("links" + place, fmt::format("must be an integer from 0 to {}", most));
    const auto count = links.get<std::int64_t>();
    for (const char* field : {"betas", "invbws"}) {
      const Json& cost = root[field][to][from];
      const bool is_zero = cost.is_number() && cost.get<double>() == 0;
      if (count == 0 && !is_zero)
        return JsonError(field + place, "must be 0: there is no link in 'links'");
    }
    if (count == 0) return absl::OkStatus();
    const absl::StatusOr<Rational> beta = CostOf(root["betas"][to][from], "betas" + place);
    if (!beta.ok()) return beta.status();
    const absl::StatusOr<Rational> invbw = CostOf(root["invbws"][to][from], "invbws" + place);
    if (!invbw.ok()) return invbw.status();
    const auto together = Rational::Make(beta->numerator(), Wide{beta->denominator()} * count);
    if (!together) return JsonError("betas" + place, "is out of range");
    BetaAt(to, from) = *together;
    return CheckSum(*invbw, profile_.alpha, *beta, "invbws" + place, "alpha + betas" + place);
  }

  Rational& BetaAt(std::uint32_t to, std::uint32_t from) {
    return profile_.betas[to * profile_.gpus + from];
  }

  const TacclUnits& units_;
  TacclProfile profile_;
};

}  // namespace

std::optional<NodeModel> ParseNodeModel(std::string_view text) {
  for (const ModelName& known : kModels)
    if (IsSameWord(text, known.name)) return known.model;
  return std::nullopt;
}

absl::StatusOr<TacclProfile> ParseTacclProfile(std::string_view text, const TacclUnits& units) {
  const absl::StatusOr<Json> root = ParseJson(text, kSketchTextBytesMax);
  if (!root.ok()) return root.status();
  return ProfileReader(units).Read(*root);
}

}  // namespace phub::plan
