// Files of the generated corpus (make_corpus.cc).
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/wire/message.h"

namespace phub::fuzz {

struct File {
  std::string path;  // <target>/<name>
  std::vector<std::byte> bytes;
};
using Files = std::vector<File>;

// The input with one byte changed, cut short, and extended. The name says which.
void AddNearMisses(Files& files, const std::string& target, const std::vector<std::byte>& valid,
                   std::initializer_list<std::size_t> places);

// A header that a decoder accepts.
std::vector<std::byte> Encoded(const wire::MessageHeader& header);

void AddMessageHeaders(Files& files);  // corpus_headers.cc

}  // namespace phub::fuzz
