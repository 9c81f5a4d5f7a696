// The sections of a calibration file, in the order of configs/README.md (planner/spec/write_calibration.hpp).
#include "planner/spec/write_calibration.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace plimsoll {
namespace {

using Json = nlohmann::ordered_json;

/// Six significant digits: more than any measurement has.
double rounded(double value) { return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr); }
double us(double seconds) { return rounded(seconds * 1e6); }
double ps(double seconds) { return rounded(seconds * 1e12); }

void add_provenance(Json& json, const Provenance& p) {
  json["evidence"] = name_of(p.evidence);
  if (p.samples > 0) json["samples"] = p.samples;
  if (p.residual > 0) json["residual"] = rounded(p.residual);
  if (p.interval > 0) json["interval"] = rounded(p.interval);
  if (p.range_low > 0) json["range_low"] = rounded(p.range_low);
  if (p.range_high > 0) json["range_high"] = rounded(p.range_high);
  if (!p.source.empty()) json["source"] = p.source;
}

void add_surface(Json& json, const Surface& surface) {
  if (surface.places.empty()) return;
  Json places = Json::array();
  for (const Surface::Place& place : surface.places) {
    Json row = Json::array();
    for (const double size : place.log2_sizes) row.push_back(rounded(std::exp2(size)));
    row.push_back(rounded(std::exp(place.log_factor)));
    places.push_back(std::move(row));
  }
  json["surface"] = {{"width", surface.width}, {"shrink", surface.shrink}, {"places", std::move(places)}};
}

Json gemm_json(const GemmPrice& g) {
  Json json = {{"launch_us", us(g.launch_s)},
               {"memset_us", us(g.memset_s)},
               {"flops_per_s", rounded(g.flops_per_s)},
               {"epilogue_ps_per_element", ps(g.epilogue_s_per_element)},
               {"traffic_share", rounded(g.traffic_share)},
               {"traffic_bytes_per_s", rounded(g.traffic_bytes_per_s)},
               {"memory_bytes_per_s", rounded(g.memory_bytes_per_s)},
               {"skinny_floor_us", us(g.skinny_floor_s)},
               {"skinny_bytes_per_s", rounded(g.skinny_bytes_per_s)},
               {"fp32_flops_per_s", rounded(g.fp32_flops_per_s)},
               {"fp32_fixed_us", us(g.fp32_fixed_s)},
               {"fp32_power", g.fp32_power},
               {"sag", g.sag},
               {"sag_from", g.sag_from},
               {"sag_full", g.sag_full},
               {"sag_together", g.sag_together}};
  if (g.fp32_bytes_per_s > 0) json["fp32_bytes_per_s"] = rounded(g.fp32_bytes_per_s);
  for (const GemmPrice::Tile& tile : g.tiles)
    json["tiles"].push_back({{"m", tile.m}, {"n", tile.n}, {"efficiency", rounded(tile.efficiency)}});
  add_surface(json, g.surface);
  add_provenance(json, g.provenance);
  return json;
}

Json grouped_json(const GroupedGemmPrice& g) {
  Json json = {{"fixed_us", us(g.fixed_s)},
               {"prepare_us", us(g.prepare_s)},
               {"flops_per_s", rounded(g.flops_per_s)},
               {"half_length", rounded(g.half_length)},
               {"many_groups", g.many_groups},
               {"many_factor", rounded(g.many_factor)}};
  for (const auto& [key, tiled] : {std::pair{"large_tiles", &g.large}, std::pair{"small_tiles", &g.small}}) {
    if (tiled->flops_per_s <= 0) continue;
    json[key] = {{"fixed_us", us(tiled->fixed_s)},
                 {"group_us", us(tiled->group_s)},
                 {"flops_per_s", rounded(tiled->flops_per_s)},
                 {"epilogue_us", us(tiled->epilogue_s)},
                 {"memory_bytes_per_s", rounded(tiled->memory_bytes_per_s)}};
  }
  add_surface(json, g.surface);
  add_provenance(json, g.provenance);
  return json;
}

Json attention_json(const AttentionPrice& a) {
  Json json = {{"fixed_us", us(a.fixed_s)}};
  for (const auto& [key, rates] : {std::pair{"forward", &a.forward}, std::pair{"backward", &a.backward}}) {
    for (const AttentionPrice::Rate& rate : *rates) {
      Json one = {{"head_dim", rate.head_dim},
                  {"flops_per_s", rounded(rate.flops_per_s)},
                  {"half_length", rounded(rate.half_length)}};
      if (rate.fixed_s >= 0) one["fixed_us"] = us(rate.fixed_s);
      json[key].push_back(std::move(one));
    }
  }
  json["backward_ps_per_element"] = ps(a.backward_s_per_element);
  add_provenance(json, a.provenance);
  return json;
}

Json kernels_json(const std::map<std::string, KernelPrice>& kernels) {
  Json json = Json::object();
  for (const auto& [name, price] : kernels) {
    Json one = {{"fixed_us", us(price.fixed_s)}};
    if (price.s_per_element > 0) one["ps_per_element"] = ps(price.s_per_element);
    if (price.bytes_per_s > 0) one["bytes_per_s"] = rounded(price.bytes_per_s);
    if (price.cached_bytes > 0) {
      one["cached_bytes"] = price.cached_bytes;
      one["cached_bytes_per_s"] = rounded(price.cached_bytes_per_s);
    }
    add_provenance(one, price.provenance);
    json[name] = std::move(one);
  }
  return json;
}

Json collective_json(const CollectivePrice& c) {
  Json json = {{"kind", name_of(c.kind)}, {"tier", name_of(c.tier)}, {"ranks", c.ranks}};
  for (const CollectivePrice::Piece& piece : c.pieces)
    json["pieces"].push_back({{"latency_us", us(piece.latency_s)}, {"bytes_per_s", rounded(piece.bytes_per_s)}});
  for (const auto& [bytes, seconds] : c.points) json["points"].push_back(Json::array({bytes, us(seconds)}));
  add_provenance(json, c.provenance);
  return json;
}

Json host_json(const HostPrices& h) {
  Json json = {{"launch_forward_us", us(h.launch_forward_s)},
               {"launch_backward_us", us(h.launch_backward_s)},
               {"launch_optimizer_us", us(h.launch_optimizer_s)},
               {"launch_compiled_us", us(h.launch_compiled_s)},
               {"launch_repeated_us", us(h.launch_repeated_s)},
               {"launch_latency_us", us(h.launch_latency_s)},
               {"kernel_gap_us", us(h.kernel_gap_s)},
               {"kernel_gap_streams_us", us(h.kernel_gap_streams_s)},
               {"sync_us", us(h.sync_s)},
               {"queue_depth", h.queue_depth},
               {"spread", h.spread},
               {"cpu_adam_ps_per_element", ps(h.cpu_adam_s_per_element)}};
  for (const auto& [name, seconds] : h.work_s) json["work_us"][name] = us(seconds);
  add_provenance(json, h.provenance);
  return json;
}

Json interference_json(const InterferencePrices& i) {
  Json json = {{"collective", rounded(i.collective_factor)}};
  const auto by_kernel = [&](const char* key, const std::map<std::string, double>& factors) {
    for (const auto& [name, factor] : factors) json[key][name] = rounded(factor);
  };
  by_kernel("factor", i.factor);
  by_kernel("factor_exchange", i.exchange_factor);
  by_kernel("collective_beside", i.collective_beside);
  add_provenance(json, i.provenance);
  return json;
}

Json copies_json(const Calibration& c) {
  Json json = {{"fixed_us", us(c.copy_fixed_s)}, {"bytes_per_s", rounded(c.copy_bytes_per_s)}};
  for (const CopyPrice& copy : c.copy_prices) {
    Json one = {{"direction", copy.to_device ? "host_to_device" : "device_to_host"},
                {"memory", copy.pinned ? "pinned" : "pageable"},
                {"ranks", copy.all_ranks ? "all" : "one"},
                {"fixed_us", us(copy.fixed_s)},
                {"bytes_per_s", rounded(copy.bytes_per_s)}};
    for (const auto& [bytes, seconds] : copy.points) one["points"].push_back(Json::array({bytes, us(seconds)}));
    add_provenance(one, copy.provenance);
    json["kinds"].push_back(std::move(one));
  }
  add_provenance(json, c.copies);
  return json;
}

/// Arrays of numbers on one line each, where nlohmann gives every number its own.
std::string with_short_arrays(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t first = text[i] == '[' ? text.find_first_not_of(" \n", i + 1) : std::string::npos;
    const bool numbers =
        first != std::string::npos && (text[first] == '-' || (text[first] >= '0' && text[first] <= '9'));
    if (!numbers) {
      result += text[i];
      continue;
    }
    for (; text[i] != ']'; ++i) {
      if (text[i] != ' ' && text[i] != '\n') result += text[i];
      if (text[i] == ',') result += ' ';
    }
    result += ']';
  }
  return result;
}

}  // namespace

std::string calibration_text(const Calibration& c) {
  Json json = {{"format", "plimsoll-calibration/1"}, {"name", c.name}, {"device", c.device}};
  if (!c.date.empty()) json["date"] = c.date;
  if (!c.versions.empty()) json["versions"] = c.versions;
  if (!c.source.empty()) json["source"] = c.source;
  json["gemm"] = gemm_json(c.gemm);
  json["grouped_gemm"] = grouped_json(c.grouped_gemm);
  json["attention"] = attention_json(c.attention);
  json["kernels"] = kernels_json(c.kernels);
  json["collectives"] = Json::array();
  for (const CollectivePrice& price : c.collectives) json["collectives"].push_back(collective_json(price));
  json["host"] = host_json(c.host);
  json["interference"] = interference_json(c.interference);
  json["cache"] = {{"bytes", c.cache.bytes}, {"factor", c.cache.factor}};
  json["copies"] = copies_json(c);
  for (const auto& [what, bytes] : c.fixed_bytes) json["fixed_bytes"][what] = bytes;
  return with_short_arrays(json.dump(1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

}  // namespace plimsoll
