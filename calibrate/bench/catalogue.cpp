// The grids (calibrate/bench/catalogue.hpp).  Values: 0 what every calibration needs, 1 the grid's body, 2 its edges.
#include "calibrate/bench/catalogue.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <set>
#include <string_view>

namespace plimsoll::calibrate {
namespace {

using Sizes = std::map<std::string, std::int64_t>;
using Labels = std::map<std::string, std::string>;

class Grid {
 public:
  void add(int value, std::string kind, Labels labels, Sizes sizes, bool shared = false) {
    cases_.push_back({{std::move(kind), std::move(labels), std::move(sizes)}, value, shared});
  }
  /// A point that is measured that many times, with others between.
  void add_in_rounds(std::int64_t rounds, int value, const std::string& kind, const Labels& labels, Sizes sizes,
                     bool shared = false) {
    for (sizes["round"] = 1; sizes["round"] <= rounds; ++sizes["round"]) add(value, kind, labels, sizes, shared);
  }
  std::vector<Case> take() { return std::move(cases_); }

 private:
  std::vector<Case> cases_;
};

/// Powers of four come first, those between them tell how straight the line is.
bool on_coarse_grid(std::int64_t power_of_two) {
  return std::countr_zero(static_cast<std::uint64_t>(power_of_two)) % 2 == 0;
}

/// Tokens times the widths of common layers; forward reads [m,k] and [n,k], the gradients the same widths turned.
void products(Grid& grid) {
  constexpr std::array<std::array<std::int64_t, 2>, 12> widths = {{{4096, 4096},
                                                                   {11008, 4096},
                                                                   {4096, 11008},
                                                                   {2048, 2048},
                                                                   {8192, 2048},
                                                                   {1024, 1024},
                                                                   {512, 2048},
                                                                   {14336, 4096},
                                                                   {8192, 8192},
                                                                   {1024, 4096},
                                                                   {32000, 4096},
                                                                   {128256, 2048}}};
  for (const std::int64_t tokens : {8192, 4096, 2048, 16384, 1024, 512}) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const auto [n, k] = widths[i];
      const int value = tokens == 8192 || (tokens == 4096 && i < 6) ? 0 : tokens >= 2048 ? 1 : 2;
      grid.add(value, "gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", tokens}, {"n", n}, {"k", k}});
      if (tokens != 8192 && tokens != 2048 && tokens != 4096) continue;
      grid.add(value, "gemm", {{"layout", "input_gradient"}, {"dtype", "bf16"}}, {{"m", tokens}, {"n", k}, {"k", n}});
      grid.add(value, "gemm", {{"layout", "weight_gradient"}, {"dtype", "bf16"}}, {{"m", n}, {"n", k}, {"k", tokens}});
    }
  }
  // Between the powers of two, and other models' widths: how well are unseen shapes predicted?
  for (const std::int64_t tokens : {3072, 6144, 12288}) {
    for (const auto& [n, k] : widths) {
      if (n < 100000)
        grid.add(2, "gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", tokens}, {"n", n}, {"k", k}});
    }
  }
  for (const std::int64_t tokens : {2048, 4096, 8192, 16384}) {
    for (const auto& [n, k] : std::array<std::array<std::int64_t, 2>, 6>{
             {{5120, 5120}, {13824, 5120}, {5120, 13824}, {3072, 3072}, {2560, 2048}, {28672, 8192}}}) {
      grid.add(2, "gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", tokens}, {"n", n}, {"k", k}});
      grid.add(2, "gemm", {{"layout", "weight_gradient"}, {"dtype", "bf16"}}, {{"m", n}, {"n", k}, {"k", tokens}});
    }
  }
  for (const std::int64_t experts : {8, 64})
    grid.add(1, "gemm", {{"layout", "forward"}, {"dtype", "bf16"}}, {{"m", 8192}, {"n", experts}, {"k", 2048}});
  grid.add(2, "gemm", {{"layout", "forward"}, {"dtype", "fp32"}}, {{"m", 4096}, {"n", 4096}, {"k", 4096}});
  grid.add(2, "gemm", {{"layout", "forward"}, {"dtype", "fp32"}}, {{"m", 8192}, {"n", 2048}, {"k", 1024}});
}

void grouped_products(Grid& grid) {
  constexpr std::array<std::array<std::int64_t, 2>, 4> widths = {
      {{3584, 1024}, {1024, 3584}, {768, 2048}, {4096, 4096}}};
  for (const std::int64_t groups : {4, 8, 16, 32, 64}) {
    for (const std::int64_t rows : {128, 512, 2048, 4096}) {
      if (groups * rows > 65536 || groups * rows < 2048) continue;
      for (std::size_t i = 0; i < widths.size(); ++i) {
        const auto [n, k] = widths[i];
        grid.add(groups <= 8 && rows >= 512 && i < 3 ? 0
                 : rows >= 512                       ? 1
                                                     : 2,
                 "gemm_grouped", {{"layout", "forward"}, {"dtype", "bf16"}},
                 {{"groups", groups}, {"m", groups * rows}, {"n", n}, {"k", k}});
      }
    }
  }
}

void attention(Grid& grid) {
  for (const std::int64_t head_dim : {128, 64}) {
    for (const std::int64_t length : {2048, 4096, 1024, 8192, 512, 16384}) {
      // Equal work for each length up to the longest; a second batch tells the fixed cost from the rate.
      const std::int64_t batch = std::max<std::int64_t>(16, std::int64_t{131072} * 2 / length);
      const int value = length == 2048 || length == 4096 ? 0 : length < 16384 && length > 512 ? 1 : 2;
      for (const char* direction : {"forward", "backward"}) {
        grid.add(value, "attention", {{"direction", direction}, {"dtype", "bf16"}, {"library", "cudnn"}},
                 {{"batch", batch}, {"kv_batch", batch}, {"length", length}, {"head_dim", head_dim}});
        grid.add(value + 1, "attention", {{"direction", direction}, {"dtype", "bf16"}, {"library", "cudnn"}},
                 {{"batch", std::max<std::int64_t>(16, batch / 2)},
                  {"kv_batch", std::max<std::int64_t>(4, batch / 8)},
                  {"length", length},
                  {"head_dim", head_dim}});
      }
    }
  }
}

void kernels(Grid& grid, std::int64_t least, std::int64_t most) {
  constexpr std::array ops = {"vectorized",
                              "flat_copy",
                              "fill",
                              "silu",
                              "upcast",
                              "adamw",
                              "fused_norm",
                              "fused_norm_backward",
                              "fused_rotary",
                              "fused_swiglu",
                              "fused_swiglu_backward",
                              "gather_rows",
                              "embedding_backward",
                              "softmax_loss",
                              "reduce_last",
                              "reduce_rows",
                              "strided_copy",
                              "memset"};
  for (const char* op : ops) {
    for (std::int64_t elements = least; elements <= most; elements *= 2) {
      grid.add(on_coarse_grid(elements / least) ? 0 : 1, "kernel", {{"op", op}, {"dtype", "bf16"}},
               {{"elements", elements}});
    }
  }
}

/// From a page on, doubled.
std::vector<std::int64_t> copied_sizes(std::int64_t most) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = 1 << 12; bytes <= most; bytes *= 2) sizes.push_back(bytes);
  return sizes;
}

/// Pageable copies are as fast as the processor at that moment; moments are longer than what a point takes.  So each size comes
/// again and again, all of them beside each other: a slow moment is one of many for every size.
void copies(Grid& grid, int world) {
  constexpr std::int64_t rounds = 9;  // of 0.8 s a direction
  std::vector<std::int64_t> staged = copied_sizes(1 << 26);
  // The driver takes up to 64 KiB into its own buffer and returns: points on both sides of it.
  staged.insert(staged.end(), {3 << 14, 3 << 15});
  for (const char* ranks : {"one", "all"}) {
    const bool all = ranks[0] == 'a';
    if (all && world == 1) continue;
    for (const char* direction : {"host_to_device", "device_to_host"}) {
      const Labels pinned{{"direction", direction}, {"memory", "pinned"}, {"ranks", ranks}};
      for (const std::int64_t bytes : copied_sizes(1 << 28))
        grid.add((all ? 1 : 0) + (on_coarse_grid(bytes) ? 0 : 1), "copy", pinned, {{"bytes", bytes}}, all);
      const Labels pageable{{"direction", direction}, {"memory", "pageable"}, {"ranks", ranks}};
      for (const std::int64_t bytes : staged)
        grid.add_in_rounds(rounds, all ? 2 : 1, "copy", pageable, {{"bytes", bytes}}, all);
    }
  }
}

/// The shapes of groups that expert parallelism makes of a node (named size x stride): for each ep that divides it,
/// the ranks that share out a layer's experts, side by side, and those that hold the same experts, ep apart.
std::vector<std::pair<std::string, int>> expert_groups(int world) {
  std::vector<std::pair<std::string, int>> groups;
  for (int ep = 2; ep < world; ep *= 2) {
    if (world % ep != 0) continue;
    groups.emplace_back(std::to_string(ep) + "x1", ep);
    groups.emplace_back(std::to_string(world / ep) + "x" + std::to_string(ep), world / ep);
  }
  return groups;
}

void collectives(Grid& grid, int world, const std::string& tier, std::int64_t least, std::int64_t most) {
  for (const char* op :
       {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_receive", "all_to_all_skewed"}) {
    const std::string name = op;
    const bool usual = name != "broadcast" && name != "send_receive" && name != "all_to_all_skewed";
    for (std::int64_t bytes = least; bytes <= most; bytes *= 2) {
      const int edge = on_coarse_grid(bytes) ? 0 : 1;
      for (const char* dtype : {"bf16", "fp32"}) {
        const bool other = dtype[0] == 'f';
        if (other && (name != "reduce_scatter" && name != "all_reduce")) continue;
        if (other && !on_coarse_grid(bytes)) continue;
        grid.add((usual && !other ? 0 : 1) + edge, "collective",
                 {{"op", op}, {"dtype", dtype}, {"group", "world"}, {"tier", tier}},
                 {{"bytes", bytes}, {"ranks", world}}, true);
      }
      if (!usual) continue;
      for (const auto& [group, ranks] : expert_groups(world)) {
        grid.add(1 + edge, "collective", {{"op", op}, {"dtype", "bf16"}, {"group", group}, {"tier", tier}},
                 {{"bytes", bytes}, {"ranks", ranks}}, true);
      }
    }
  }
}

/// What a step really overlaps: products and streaming kernels beside each collective, collectives beside each other,
/// copies beside both.
void pairs(Grid& grid, int world) {
  const auto pair = [&](int value, const char* first, const char* second) {
    grid.add(value, "pair", {{"first", first}, {"second", second}}, {}, true);
  };
  if (world > 1) {
    for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
      for (const char* compute : {"gemm_8192_4096_4096", "gemm_8192_8192_2048", "gemm_4096_11008_4096"})
        pair(compute[10] == '4' ? 0 : 1, compute, collective);
      pair(1, "attention", collective);
      pair(1, "vectorized", collective);
      pair(2, "grouped_gemm", collective);
    }
    // What the simulator means: the collective runs, and kernels come and go beside it.  Two shapes of a kind or more, so that
    // one can be predicted by the others.
    for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
      for (const char* compute :
           {"gemm_8192_4096_4096", "gemm_8192_8192_2048", "gemm_4096_11008_4096", "attention", "grouped_gemm",
            "vectorized", "attention_2048", "attention_backward", "attention_backward_2048",
            "grouped_gemm_16_32768_768_2048", "silu", "adamw", "grouped_gemm_8_16384_1024_3584",
            "grouped_gemm_8_16384_4096_4096", "grouped_gemm_64_32768_768_2048", "grouped_gemm_4_8192_3584_1024"}) {
        const bool usual = std::string_view(compute).starts_with("gemm");
        grid.add(usual ? 1 : 2, "pair", {{"first", compute}, {"second", collective}, {"resident", "second"}}, {}, true);
      }
    }
    pair(1, "all_gather", "all_to_all");
    pair(1, "copy", "all_gather");
    pair(1, "copy", "reduce_scatter");
  }
  pair(1, "gemm_8192_4096_4096", "copy");
  pair(1, "vectorized", "copy");
}

}  // namespace

std::vector<Case> cuda_grid(int world, const std::string& tier) {
  Grid grid;
  for (const char* what : {"context", "communicator", "gemm_workspace"}) {
    const bool shared = what == std::string_view("communicator");
    if (!shared || world > 1) grid.add(0, "fixed_bytes", {{"what", what}}, {}, shared);
  }
  for (const char* op : {"launch", "launch_latency", "kernel_gap", "timed_empty", "event", "stream_wait", "sync"})
    grid.add(0, "host", {{"op", op}}, {});
  products(grid);
  grouped_products(grid);
  attention(grid);
  kernels(grid, std::int64_t{1} << 18, std::int64_t{1} << 28);
  copies(grid, world);
  for (const std::int64_t elements : {std::int64_t{1} << 20, std::int64_t{1} << 24, std::int64_t{1} << 26})
    grid.add(1, "host", {{"op", "cpu_adam"}}, {{"elements", elements}});
  if (world > 1) collectives(grid, world, tier, 1 << 10, std::int64_t{1} << 30);
  pairs(grid, world);
  return grid.take();
}

std::vector<Case> host_grid(int world) {
  Grid grid;
  for (const std::int64_t m : {64, 128, 256}) {
    for (const std::int64_t n : {64, 192, 384}) {
      for (const std::int64_t k : {64, 256})
        grid.add(0, "gemm", {{"layout", "forward"}, {"dtype", "fp32"}}, {{"m", m}, {"n", n}, {"k", k}});
    }
  }
  for (const char* op : {"vectorized", "flat_copy", "fill", "silu", "adamw"}) {
    for (std::int64_t elements = 1 << 12; elements <= 1 << 20; elements *= 4)
      grid.add(0, "kernel", {{"op", op}, {"dtype", "fp32"}}, {{"elements", elements}});
  }
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 24; bytes *= 4)
    grid.add(0, "copy", {{"direction", "host_to_device"}, {"memory", "pinned"}, {"ranks", "one"}}, {{"bytes", bytes}});
  for (std::int64_t bytes = 1 << 12; bytes <= 1 << 20; bytes *= 4)
    grid.add_in_rounds(3, 1, "copy", {{"direction", "host_to_device"}, {"memory", "pageable"}, {"ranks", "one"}},
                       {{"bytes", bytes}});
  for (const char* op : {"launch", "sync"}) grid.add(0, "host", {{"op", op}}, {});
  grid.add(1, "host", {{"op", "cpu_adam"}}, {{"elements", 1 << 18}});
  // With one process the ranks are threads.
  const bool processes = world > 1;
  for (const char* op : {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}) {
    for (std::int64_t bytes = 1 << 12; bytes <= 1 << 22; bytes *= 8)
      grid.add(0, "collective", {{"op", op}, {"dtype", "fp32"}, {"group", "world"}, {"tier", "pcie"}},
               {{"bytes", bytes}, {"ranks", processes ? world : 2}}, processes);
  }
  return grid.take();
}

namespace {

/// Rounds of points among points that have none: the r-th of R rounds, together, when r - 1/2 of R parts of the others are through.
void spread_rounds(std::vector<Case>::iterator first, std::vector<Case>::iterator last) {
  std::int64_t rounds = 0;
  std::ptrdiff_t others = 0;
  for (auto c = first; c != last; ++c) {
    rounds = std::max(rounds, c->point.size("round"));
    others += c->point.size("round") == 0 ? 1 : 0;
  }
  if (rounds == 0) return;
  std::vector<std::pair<double, Case>> placed;  // by the share of the others that came before
  std::ptrdiff_t passed = 0;
  for (auto c = first; c != last; ++c) {
    const std::int64_t round = c->point.size("round");
    const double share = round > 0 ? (static_cast<double>(round) - 0.5) / static_cast<double>(rounds)
                                   : static_cast<double>(passed++) / static_cast<double>(others);
    placed.emplace_back(share, std::move(*c));
  }
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::transform(placed.begin(), placed.end(), first, [](auto& one) { return std::move(one.second); });
}

}  // namespace

std::vector<Case> in_order(std::vector<Case> cases) {
  std::stable_sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.value < b.value; });
  std::set<Point> seen;
  std::erase_if(cases, [&seen](const Case& c) { return !seen.insert(c.point).second; });
  for (auto first = cases.begin(); first != cases.end();) {
    const auto last = std::find_if(first, cases.end(), [&](const Case& c) { return c.value != first->value; });
    spread_rounds(first, last);
    first = last;
  }
  return cases;
}

}  // namespace plimsoll::calibrate
