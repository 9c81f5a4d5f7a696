// The reader of calibration files, section by section (planner/spec/read_calibration.hpp).
#include "planner/spec/read_calibration.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>
#include <vector>

#include "planner/spec/limits.hpp"

namespace plimsoll {
namespace {

constexpr double longest_s = 1e3;
constexpr const char* this_format = "plimsoll-calibration/1";

/// By so much measured times may fall where the size rises: they stray by a few per cent.
constexpr double noise = 0.1;

std::vector<std::string> evidence_names() {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(Evidence::assumed); ++i) names.emplace_back(name_of(static_cast<Evidence>(i)));
  return names;
}

class CalibrationReader {
 public:
  explicit CalibrationReader(const Document& document) : root_(document.root(), diagnostics_, "calibration") {}

  Result<Calibration> read(std::string name) {
    if (const std::string format = root_.required_string("format"); root_.has("format") && format != this_format)
      root_.report(Severity::error, "format", "format",
                   fmt::format(R"(the format is "{}", this program reads "{}")", format, this_format));
    result_.name = root_.string("name").value_or(std::move(name));
    result_.device = root_.required_string("device");
    result_.date = root_.string("date").value_or("");
    result_.versions = root_.string("versions").value_or("");
    result_.source = root_.string("source").value_or("");
    section("gemm", [this](ObjectReader& r) { gemm(r); });
    section("grouped_gemm", [this](ObjectReader& r) { grouped(r); });
    section("attention", [this](ObjectReader& r) { attention(r); });
    section("kernels", [this](ObjectReader& r) { kernels(r); });
    section("host", [this](ObjectReader& r) { host(r); });
    section("interference", [this](ObjectReader& r) { interference(r); });
    section("cache", [this](ObjectReader& r) {
      if (const auto value = r.number("bytes", 0, limits::highest_rate)) result_.cache.bytes = *value;
      if (const auto value = r.number("factor", 0.01, 1)) result_.cache.factor = *value;
      provenance(r);
    });
    section("copies", [this](ObjectReader& r) {
      seconds(r, "fixed_us", result_.copy_fixed_s, 1e-6);
      required_rate(r, "bytes_per_s", result_.copy_bytes_per_s);
      result_.copies = provenance(r);
      copies(r);
    });
    section("fixed_bytes", [this](ObjectReader& r) {
      for (const Node::Member& member : r.node().members()) {
        if (const auto value = r.number(member.key, 0, limits::highest_rate)) result_.fixed_bytes[member.key] = *value;
      }
    });
    collectives();
    root_.know({"samples", "comment"});
    root_.report_unknown();
    if (has_errors(diagnostics_)) return diagnostics_;
    return {std::move(result_), std::move(diagnostics_)};
  }

 private:
  template <class Read>
  void section(const char* key, Read read) {
    const Node* node = root_.object(key);
    if (!node) return;
    ObjectReader reader(*node, diagnostics_, "calibration");
    read(reader);
    reader.report_unknown();
  }

  static void seconds(ObjectReader& r, const char* key, double& into, double unit) {
    if (const auto value = r.number(key, 0, longest_s / unit)) into = *value * unit;
  }
  static void rate(ObjectReader& r, const char* key, double& into) {
    if (const auto value = r.number(key, limits::lowest_rate, limits::highest_rate)) into = *value;
  }
  /// Nothing stands in for a rate that its rule is about.
  static void required_rate(ObjectReader& r, const char* key, double& into) {
    rate(r, key, into);
    if (!r.has(key))
      r.report(Severity::error, key, "missing", fmt::format("{}/{} is missing", r.node().pointer(), key));
  }

  static Provenance provenance(ObjectReader& r) {
    Provenance p;
    if (const auto index = r.choice("evidence", evidence_names())) p.evidence = static_cast<Evidence>(*index);
    p.samples = static_cast<int>(r.integer("samples", 0, 1'000'000'000).value_or(0));
    p.residual = r.number("residual", 0, 1e6).value_or(0);
    p.interval = r.number("interval", 0, 1e6).value_or(0);
    p.range_low = r.number("range_low", 0).value_or(0);
    p.range_high = r.number("range_high", 0).value_or(0);
    p.source = r.string("source").value_or("");
    return p;
  }

  /// "surface": {"width", "shrink", "places": [[size, size, size, factor], ...]}
  void surface(ObjectReader& parent, Surface& into) {
    const Node* node = parent.object("surface");
    if (!node) return;
    ObjectReader r(*node, diagnostics_, "calibration");
    if (const auto value = r.number("width", 0.01, 10)) into.width = *value;
    if (const auto value = r.number("shrink", 0, 100)) into.shrink = *value;
    for (const std::vector<double>& row : rows(r, "places", 4)) {
      into.places.push_back({{std::log2(row[0]), std::log2(row[1]), std::log2(row[2])}, std::log(row[3])});
    }
    r.report_unknown();
  }

  /// Arrays of `length` numbers above zero.
  static std::vector<std::vector<double>> rows(ObjectReader& r, const char* key, std::size_t length) {
    std::vector<std::vector<double>> result;
    const Node* list = r.array(key);
    if (!list) return result;
    for (const Node* item : list->items()) {
      std::vector<double> row;
      if (item->is_array()) {
        for (const Node* number : item->items()) {
          if (number->is_number() && number->as_double() > 0) row.push_back(number->as_double());
        }
      }
      if (row.size() == length) {
        result.push_back(std::move(row));
      } else {
        r.report(Severity::error, key, "type",
                 fmt::format("{} holds arrays of {} numbers above zero, not {}", key, length, item->source()));
      }
    }
    return result;
  }

  /// "points": [[bytes, us], ...], rising.
  static void points(ObjectReader& r, std::vector<std::pair<double, double>>& into) {
    for (const std::vector<double>& row : rows(r, "points", 2)) {
      if (!into.empty() && row[0] <= into.back().first)
        r.report(Severity::error, "points", "monotone", "the points must rise in bytes");
      else if (!into.empty() && row[1] * 1e-6 < (1 - noise) * into.back().second)
        r.report(Severity::warning, "points", "monotone",
                 fmt::format("{:.0f} bytes take {:g} us, and fewer bytes, {:.0f}, take {:g} us", row[0], row[1],
                             into.back().first, into.back().second * 1e6),
                 "measure again what other work on the device may have disturbed");
      into.emplace_back(row[0], row[1] * 1e-6);
    }
  }

  void copies(ObjectReader& r) {
    each(r, "kinds", [this](ObjectReader& entry) {
      CopyPrice price;
      price.to_device = entry.choice("direction", {"host_to_device", "device_to_host"}).value_or(0) == 0;
      price.pinned = entry.choice("memory", {"pinned", "pageable"}).value_or(0) == 0;
      price.all_ranks = entry.choice("ranks", {"one", "all"}).value_or(0) == 1;
      seconds(entry, "fixed_us", price.fixed_s, 1e-6);
      rate(entry, "bytes_per_s", price.bytes_per_s);
      points(entry, price.points);
      price.provenance = provenance(entry);
      result_.copy_prices.push_back(std::move(price));
    });
  }

  void gemm(ObjectReader& r) {
    GemmPrice& g = result_.gemm;
    seconds(r, "launch_us", g.launch_s, 1e-6);
    seconds(r, "memset_us", g.memset_s, 1e-6);
    required_rate(r, "flops_per_s", g.flops_per_s);
    seconds(r, "epilogue_ps_per_element", g.epilogue_s_per_element, 1e-12);
    if (const auto value = r.number("traffic_share", 0, 10)) g.traffic_share = *value;
    rate(r, "traffic_bytes_per_s", g.traffic_bytes_per_s);
    rate(r, "memory_bytes_per_s", g.memory_bytes_per_s);
    seconds(r, "skinny_floor_us", g.skinny_floor_s, 1e-6);
    rate(r, "skinny_bytes_per_s", g.skinny_bytes_per_s);
    rate(r, "fp32_flops_per_s", g.fp32_flops_per_s);
    seconds(r, "fp32_fixed_us", g.fp32_fixed_s, 1e-6);
    rate(r, "fp32_bytes_per_s", g.fp32_bytes_per_s);
    if (const auto value = r.number("fp32_power", 0, 10)) g.fp32_power = *value;
    if (const auto value = r.number("sag", 1, 10)) g.sag = *value;
    if (const auto value = r.number("sag_from", 0, 1)) g.sag_from = *value;
    if (const auto value = r.number("sag_full", 0, 1)) g.sag_full = *value;
    if (const auto value = r.number("sag_together", 0, 1)) g.sag_together = *value;
    if (g.sag_full <= g.sag_from)
      r.report(Severity::error, "sag_full", "range", "/gemm/sag_full must be above sag_from");
    each(r, "tiles", [&g](ObjectReader& tile) {
      g.tiles.push_back({static_cast<int>(tile.required_integer("m", 1, 4096)),
                         static_cast<int>(tile.required_integer("n", 1, 4096)),
                         tile.number("efficiency", 0.01, 1).value_or(1)});
    });
    if (g.tiles.empty())
      r.report(Severity::error, "tiles", "missing", R"(/gemm/tiles needs at least one tile {"m", "n"})");
    surface(r, g.surface);
    g.provenance = provenance(r);
  }

  void grouped(ObjectReader& r) {
    GroupedGemmPrice& g = result_.grouped_gemm;
    seconds(r, "fixed_us", g.fixed_s, 1e-6);
    seconds(r, "prepare_us", g.prepare_s, 1e-6);
    required_rate(r, "flops_per_s", g.flops_per_s);
    if (const auto value = r.number("half_length", 0, 1e9)) g.half_length = *value;
    if (const auto value = r.integer("many_groups", 0, 1 << 20)) g.many_groups = static_cast<int>(*value);
    if (const auto value = r.number("many_factor", 0.01, 1)) g.many_factor = *value;
    for (const auto& [key, tiled] : {std::pair{"large_tiles", &g.large}, std::pair{"small_tiles", &g.small}}) {
      const Node* node = r.object(key);
      if (!node) continue;
      ObjectReader entry(*node, diagnostics_, "calibration");
      seconds(entry, "fixed_us", tiled->fixed_s, 1e-6);
      seconds(entry, "group_us", tiled->group_s, 1e-6);
      seconds(entry, "epilogue_us", tiled->epilogue_s, 1e-6);
      required_rate(entry, "flops_per_s", tiled->flops_per_s);
      required_rate(entry, "memory_bytes_per_s", tiled->memory_bytes_per_s);
      entry.report_unknown();
    }
    surface(r, g.surface);
    g.provenance = provenance(r);
  }

  void attention(ObjectReader& r) {
    AttentionPrice& a = result_.attention;
    seconds(r, "fixed_us", a.fixed_s, 1e-6);
    seconds(r, "backward_ps_per_element", a.backward_s_per_element, 1e-12);
    for (const auto& [key, rates] : {std::pair{"forward", &a.forward}, std::pair{"backward", &a.backward}}) {
      each(r, key, [key = key, rates = rates](ObjectReader& entry) {
        AttentionPrice::Rate one;
        one.head_dim = static_cast<int>(entry.required_integer("head_dim", 1, 1 << 16));
        required_rate(entry, "flops_per_s", one.flops_per_s);
        for (const AttentionPrice::Rate& other : *rates)
          if (other.head_dim == one.head_dim)
            entry.report(Severity::error, "head_dim", "twice",
                         fmt::format("{} has a rate for heads of {} already", key, one.head_dim));
        one.half_length = entry.number("half_length", 0, 1e9).value_or(0);
        seconds(entry, "fixed_us", one.fixed_s, 1e-6);
        rates->push_back(one);
      });
    }
    a.provenance = provenance(r);
  }

  void kernels(ObjectReader& r) {
    for (const Node::Member& member : r.node().members()) {
      r.know({member.key});
      ObjectReader entry(*member.value, diagnostics_, "calibration");
      KernelPrice price;
      price.fixed_s = 0;
      seconds(entry, "fixed_us", price.fixed_s, 1e-6);
      seconds(entry, "ps_per_element", price.s_per_element, 1e-12);
      rate(entry, "bytes_per_s", price.bytes_per_s);
      price.cached_bytes = entry.number("cached_bytes", 1, 1e12).value_or(0);
      rate(entry, "cached_bytes_per_s", price.cached_bytes_per_s);
      const bool cached = price.cached_bytes > 0 || price.cached_bytes_per_s > 0;
      if (cached && (price.cached_bytes <= 0 || price.cached_bytes_per_s <= 0 || price.bytes_per_s <= 0))
        r.report(
            Severity::error, member.key.c_str(), "cached",
            "/kernels/" + member.key + " needs cached_bytes, cached_bytes_per_s and bytes_per_s, or only the last");
      price.provenance = provenance(entry);
      if (price.fixed_s <= 0 && price.s_per_element <= 0 && price.bytes_per_s <= 0)
        r.report(Severity::error, member.key.c_str(), "empty",
                 "/kernels/" + member.key + " takes no time: it needs fixed_us, ps_per_element or bytes_per_s");
      entry.report_unknown();
      result_.kernels.insert_or_assign(member.key, price);
    }
  }

  void host(ObjectReader& r) {
    HostPrices& h = result_.host;
    seconds(r, "launch_forward_us", h.launch_forward_s, 1e-6);
    seconds(r, "launch_backward_us", h.launch_backward_s, 1e-6);
    seconds(r, "launch_optimizer_us", h.launch_optimizer_s, 1e-6);
    seconds(r, "launch_compiled_us", h.launch_compiled_s, 1e-6);
    seconds(r, "launch_repeated_us", h.launch_repeated_s, 1e-6);
    seconds(r, "launch_latency_us", h.launch_latency_s, 1e-6);
    seconds(r, "kernel_gap_us", h.kernel_gap_s, 1e-6);
    seconds(r, "kernel_gap_streams_us", h.kernel_gap_streams_s, 1e-6);
    seconds(r, "sync_us", h.sync_s, 1e-6);
    seconds(r, "cpu_adam_ps_per_element", h.cpu_adam_s_per_element, 1e-12);
    if (const auto value = r.integer("queue_depth", 1, 1 << 20)) h.queue_depth = static_cast<int>(*value);
    if (const auto value = r.number("spread", 0, 10)) h.spread = *value;
    if (const Node* work = r.object("work_us")) {
      ObjectReader entries(*work, diagnostics_, "calibration");
      for (const Node::Member& member : work->members()) {
        if (const auto value = entries.number(member.key, 0, longest_s * 1e6)) h.work_s[member.key] = *value * 1e-6;
      }
    }
    h.provenance = provenance(r);
  }

  void interference(ObjectReader& r) {
    InterferencePrices& i = result_.interference;
    if (const auto value = r.number("collective", 1, 100)) i.collective_factor = *value;
    const auto by_kernel = [&](const char* key, std::map<std::string, double>& into) {
      const Node* factors = r.object(key);
      if (!factors) return;
      ObjectReader entries(*factors, diagnostics_, "calibration");
      for (const Node::Member& member : factors->members()) {
        if (const auto value = entries.number(member.key, 1, 100)) into[member.key] = *value;
      }
    };
    by_kernel("factor", i.factor);
    by_kernel("factor_exchange", i.exchange_factor);
    by_kernel("collective_beside", i.collective_beside);
    i.provenance = provenance(r);
  }

  void collectives() {
    each(root_, "collectives", [this](ObjectReader& r) {
      std::vector<std::string> kinds;
      kinds.reserve(collective_kinds.size());
      for (const CollectiveKind kind : collective_kinds) kinds.emplace_back(name_of(kind));
      static const std::vector<std::string> tiers{"nvlink", "pcie", "nic", "spine"};
      CollectivePrice price;
      if (const auto kind = r.choice("kind", kinds)) price.kind = collective_kinds[*kind];
      if (const auto tier = r.choice("tier", tiers)) price.tier = static_cast<Tier>(*tier);
      price.ranks = static_cast<int>(r.required_integer("ranks", 2, 1 << 20));
      each(r, "pieces", [&price](ObjectReader& piece) {
        CollectivePrice::Piece one;
        seconds(piece, "latency_us", one.latency_s, 1e-6);
        required_rate(piece, "bytes_per_s", one.bytes_per_s);
        price.pieces.push_back(one);
      });
      points(r, price.points);
      if (price.pieces.empty())
        r.report(Severity::error, "pieces", "missing",
                 R"(a collective needs at least one piece {"latency_us", "bytes_per_s"})");
      price.provenance = provenance(r);
      check_pieces(r, price);
      result_.collectives.push_back(std::move(price));
    });
  }

  /// t = min over pieces: one with a longer latency must have more bandwidth, or it is never the fastest.  Two curves for the
  /// same collective contradict each other.
  void check_pieces(ObjectReader& r, const CollectivePrice& price) {
    for (std::size_t i = 0; i < price.pieces.size(); ++i) {
      for (std::size_t j = 0; j < price.pieces.size(); ++j) {
        const CollectivePrice::Piece &a = price.pieces[i], &b = price.pieces[j];
        const bool beaten = a.latency_s <= b.latency_s && a.bytes_per_s >= b.bytes_per_s;
        if (i == j || !beaten || (j < i && a.latency_s == b.latency_s && a.bytes_per_s == b.bytes_per_s)) continue;
        r.report(
            Severity::warning, "pieces", "curve",
            fmt::format("piece {} is never the fastest: piece {} has no longer latency and no less bandwidth", j, i));
      }
    }
    for (const CollectivePrice& other : result_.collectives) {
      if (other.kind == price.kind && other.tier == price.tier && other.ranks == price.ranks)
        r.report(Severity::error, "ranks", "twice",
                 fmt::format("there is a curve of this kind and tier for {} ranks already", price.ranks));
    }
  }

  template <class Read>
  void each(ObjectReader& r, const char* key, Read read) {
    const Node* list = r.array(key);
    if (!list) return;
    for (const Node* item : list->items()) {
      ObjectReader entry(*item, diagnostics_, "calibration");
      read(entry);
      entry.report_unknown();
    }
  }

  Diagnostics diagnostics_;
  ObjectReader root_;
  Calibration result_;
};

}  // namespace

Result<Calibration> read_calibration(const Document& document, std::string name) {
  return CalibrationReader(document).read(std::move(name));
}

}  // namespace plimsoll
