#include "server/config/setting_table.h"

#include <array>
#include <cctype>
#include <type_traits>

namespace phub::server {
namespace {

template <typename Member>
void Assign(Member& member, const SettingValue& value) {
  if constexpr (std::is_same_v<Member, std::string> || std::is_same_v<Member, bool>) {
    member = std::get<Member>(value);
  } else {  // numbers; and choices, which are listed in the order of the enumerators
    member = static_cast<Member>(std::get<std::uint64_t>(value));
  }
}

constexpr auto kSettings = std::to_array<Setting>({
#define PHUB_SETTING_ROW(type, name, kind, fallback, help) \
  {#name, kind, fallback, help,                            \
   [](Settings& settings, const SettingValue& value) { Assign(settings.name, value); }},
    PHUB_SETTINGS(PHUB_SETTING_ROW)
#undef PHUB_SETTING_ROW
});

}  // namespace

std::string Setting::Flag() const {
  std::string flag = "--";
  for (const char character : name) flag += character == '_' ? '-' : character;
  return flag;
}

std::string Setting::Variable() const {
  std::string variable = "PHUB_";
  for (const char character : name)
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(character)));
  return variable;
}

std::span<const Setting> AllSettings() { return kSettings; }

std::size_t FindSetting(std::string_view name) {
  std::size_t index = 0;
  while (index < kSettings.size() && kSettings[index].name != name) ++index;
  return index;
}

}  // namespace phub::server
