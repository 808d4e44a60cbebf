// The files of the page, which embed.cmake writes into the program.
#pragma once

#include <string_view>

namespace phub::server {

extern const std::string_view kSite_index_html;
extern const std::string_view kSite_page_css;
extern const std::string_view kSite_page_js;

}  // namespace phub::server
