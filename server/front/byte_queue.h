// Bytes that wait to be passed on. Frees its memory whenever it is empty.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace phub::server {

class ByteQueue {
 public:
  void Append(std::string_view bytes) { bytes_.append(bytes); }
  std::size_t Take(char* to, std::size_t size) {
    const std::size_t taken = std::min(size, this->size());
    std::memcpy(to, bytes_.data() + head_, taken);
    Drop(taken);
    return taken;
  }
  void Drop(std::size_t count) {
    head_ += count;
    if (head_ == bytes_.size()) {
      std::string().swap(bytes_);
      head_ = 0;
    } else if (head_ >= kCompactBytes && head_ * 2 >= bytes_.size()) {
      bytes_.erase(0, head_);
      head_ = 0;
    }
  }
  std::string_view view() const { return std::string_view(bytes_).substr(head_); }
  std::size_t size() const { return bytes_.size() - head_; }
  bool empty() const { return size() == 0; }

 private:
  static constexpr std::size_t kCompactBytes = 64 * 1024;
  std::string bytes_;
  std::size_t head_ = 0;
};

}  // namespace phub::server
