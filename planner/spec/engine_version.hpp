// Whose behaviour is asked for?  Software changes its defaults between releases; a version that is known to differ is
// answered as it behaves where that is a matter of a default, and refused by name otherwise.
//
// DeepSpeed: gradient_clipping 0 -> 1 and bf16.check_grad_overflow in 0.19.3, native MoE's dispatch by index instead of
// [tokens, experts, capacity] masks in 0.19.4, pin_memory true in 0.19.5 (its commit history); all measurements are of
// 0.19.8.  fsdp2 and ddp: PyTorch 2.11.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace plimsoll {

struct EngineVersion {
  std::array<int, 3> parts{};  ///< 0.19.8
  auto operator<=>(const EngineVersion&) const = default;
};

/// "0.19.8", "0.19", "0.19.8+cu130"; nothing if it does not begin with a number.
std::optional<EngineVersion> parse_version(std::string_view text);

namespace deepspeed_versions {
inline constexpr EngineVersion measured{{0, 19, 8}};
inline constexpr EngineVersion pinned_by_default{{0, 19, 5}};
inline constexpr EngineVersion indexed_dispatch{{0, 19, 4}};
inline constexpr EngineVersion oldest{{0, 19, 3}};          ///< older ones differ in too much
inline constexpr EngineVersion zero_plus_plus{{0, 10, 0}};  ///< the first that knows zero_quantized_*
}  // namespace deepspeed_versions

}  // namespace plimsoll
