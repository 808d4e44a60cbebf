// The compiled program, as bytes of this binary.
#include "aggregator/xdp/program.h"

// The assembler reads the file, so no generated source has 100 KB of numbers.
asm(R"(
  .pushsection .rodata
  .balign 8
  .global phub_xdp_program_begin
  .hidden phub_xdp_program_begin
phub_xdp_program_begin:
  .incbin ")" PHUB_XDP_OBJECT R"("
  .global phub_xdp_program_end
  .hidden phub_xdp_program_end
phub_xdp_program_end:
  .popsection
)");

extern "C" const std::byte phub_xdp_program_begin[];
extern "C" const std::byte phub_xdp_program_end[];

namespace phub::aggregator {

std::span<const std::byte> EmbeddedProgram() {
  return {phub_xdp_program_begin, phub_xdp_program_end};
}

}  // namespace phub::aggregator
