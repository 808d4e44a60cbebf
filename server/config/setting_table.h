// The table of settings.h at run time, for the readers of flags, variables and files. Constant; any
// thread.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "server/config/setting_kind.h"
#include "server/config/settings.h"

namespace phub::server {

struct Setting {
  std::string_view name;  // the TOML key
  SettingKind kind;
  std::string_view fallback;  // as text
  std::string_view help;
  void (*assign)(Settings&, const SettingValue&);  // REQUIRES: the value is from ReadValue(kind)

  std::string Flag() const;      // "--data-listen"
  std::string Variable() const;  // "PHUB_DATA_LISTEN"
};

std::span<const Setting> AllSettings();
// Index into AllSettings(), or its size if no setting has that name.
std::size_t FindSetting(std::string_view name);

}  // namespace phub::server
