// SHA-256, as `sha256sum` prints it. One thread.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace phub::checkpoint {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  // 64 hexadecimal digits in lower case; begins anew.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  void Begin();
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

std::string Sha256Of(std::string_view text);
bool IsSha256(std::string_view text);

}  // namespace phub::checkpoint
