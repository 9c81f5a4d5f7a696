// What model has exactly these sizes?  A napkin states a number of dense and of expert parameters; the reader builds layers
// like Mixtral's that hold them.  With h hidden, V vocabulary, L layers, E experts, hd and n_kv of the attention:
//   outside the experts    2*V*h + h + L*(2*h^2 + 2*h*n_kv*hd + 2*h + h*E) + 3*h*L*I  =  dense - lump
//   experts                3*h*L*E*I_e                                                =  expert - lump
// I (of the dense MLP, or of a shared expert where there are routed ones) and I_e are the largest that fit.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "planner/base/format.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/model_parameters.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {
namespace {

constexpr std::string_view prefix = "sketch:";
constexpr std::int64_t usual_vocab = 32'000;
constexpr std::int64_t usual_head_dim = 128;
constexpr std::int64_t usual_experts = 8;  // as Mixtral, whose layers a sketch has

struct SketchKey {
  std::string_view name;
  std::int64_t min, max;
};
constexpr SketchKey sketch_keys[] = {
    {"dense", 1, limits::parameters}, {"expert", 1, limits::parameters}, {"experts", 1, limits::experts},
    {"top_k", 1, limits::experts},    {"hidden", 1, limits::width},      {"layers", 1, limits::layers},
    {"vocab", 1, limits::vocab},      {"heads", 1, limits::heads},       {"kv_heads", 1, limits::heads},
};

class SketchReader {
 public:
  explicit SketchReader(std::string_view text) {
    auto file = std::make_shared<SourceFile>();
    file->name = "--model";
    file->text = std::string(text);
    file_ = std::move(file);
  }

  Result<ModelSpec> read() {
    read_entries();
    if (!stated("dense"))
      report("dense", "sketch", "the sketch does not state dense, the parameters outside the experts");
    if (stated("experts") && !stated("expert")) {
      report("experts", "sketch", "expert (parameters of all experts) and experts (per layer) go together");
    }
    if (stated("expert") && !stated("experts")) {
      entries_.emplace("experts", Entry{usual_experts, entries_.at("expert").begin, entries_.at("expert").end});
      assume("{} experts in a layer", usual_experts);
    }
    if (value("dense", 0) + value("expert", 0) > limits::parameters) {
      report("expert", "range", fmt::format("more than {} parameters in all", format_count(limits::parameters)));
    }
    if (has_errors(diagnostics_)) return diagnostics_;
    choose_shape();
    choose_heads();
    if (has_errors(diagnostics_)) return diagnostics_;
    fill_dense();
    fill_experts();
    if (has_errors(diagnostics_)) return diagnostics_;
    finish();
    return {std::move(spec_), std::move(diagnostics_)};
  }

 private:
  struct Entry {
    std::int64_t value;
    std::size_t begin, end;
  };

  void read_entries() {
    const std::string_view text = file_->text;
    for (std::size_t begin = prefix.size(); begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      read_entry(begin, end);
      begin = end + 1;
    }
  }

  void read_entry(std::size_t begin, std::size_t end) {
    const std::string_view entry = std::string_view(file_->text).substr(begin, end - begin);
    const std::size_t equals = entry.find('=');
    const std::string_view name = entry.substr(0, equals);
    const auto key = std::find_if(std::begin(sketch_keys), std::end(sketch_keys),
                                  [&](const SketchKey& k) { return k.name == name; });
    if (equals == std::string_view::npos || key == std::end(sketch_keys)) {
      std::vector<std::string> names;
      std::string list;
      for (const SketchKey& k : sketch_keys) {
        names.emplace_back(k.name);
        list += fmt::format("{}{}", list.empty() ? "" : ", ", k.name);
      }
      const auto near = nearest(name, names);
      report_at(begin, end, "sketch", fmt::format("\"{}\" is no KEY=VALUE of a sketch", entry),
                near ? fmt::format("did you mean {}? keys: {}", *near, list) : "keys: " + list);
      return;
    }
    const auto count = parse_count(entry.substr(equals + 1));
    if (!count || *count < static_cast<double>(key->min) || *count > static_cast<double>(key->max) ||
        *count != std::floor(*count)) {
      report_at(
          begin, end, "sketch",
          fmt::format("{} must be a whole number from {} to {}", name, format_count(key->min), format_count(key->max)),
          "K, M, B and T stand for thousands: 56B");
      return;
    }
    if (!entries_.emplace(std::string(name), Entry{static_cast<std::int64_t>(*count), begin, end}).second) {
      report_at(begin, end, "sketch", fmt::format("{} is stated twice", name));
    }
  }

  bool stated(const std::string& key) const { return entries_.find(key) != entries_.end(); }
  std::int64_t value(const std::string& key, std::int64_t otherwise) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? otherwise : found->second.value;
  }

  /// Layers of 12*h^2 parameters, 128 times as wide as there are layers, as the large dense models are built.
  void choose_shape() {
    const auto dense = static_cast<double>(value("dense", 0));
    const auto rounded = [](double hidden) {
      return std::clamp<std::int64_t>(std::llround(hidden / 128) * 128, 128, limits::width);
    };
    if (stated("hidden")) {
      hidden_ = value("hidden", 0);
    } else {
      hidden_ = stated("layers") ? rounded(std::sqrt(dense / (12 * static_cast<double>(value("layers", 1)))))
                                 : rounded(std::cbrt(dense * 128 / 12));
      assume("a hidden size of {}", hidden_);
    }
    if (stated("layers")) {
      layers_ = value("layers", 0);
      return;
    }
    const auto h = static_cast<double>(hidden_);
    const double layers = stated("hidden") ? dense / (12 * h * h) : h / 128;
    layers_ = std::clamp<std::int64_t>(std::llround(layers), 1, limits::layers);
    assume("{} layers", layers_);
  }

  void choose_heads() {
    attention_.q_heads = value("heads", 0);
    if (attention_.q_heads == 0) {
      std::int64_t head_dim = usual_head_dim;
      while (hidden_ % head_dim != 0) head_dim /= 2;
      attention_.q_heads = std::max<std::int64_t>(hidden_ / head_dim, 1);
      assume("{} attention heads", attention_.q_heads);
    }
    if (hidden_ % attention_.q_heads != 0) {
      report("heads", "heads", fmt::format("{} heads do not divide the hidden size, {}", attention_.q_heads, hidden_));
      return;
    }
    attention_.head_dim = hidden_ / attention_.q_heads;
    attention_.kv_heads = value("kv_heads", 0);
    if (attention_.kv_heads == 0) {
      attention_.kv_heads = attention_.q_heads % 8 == 0 ? 8 : attention_.q_heads;
      assume("{} heads of keys and values", attention_.kv_heads);
    }
    if (attention_.q_heads % attention_.kv_heads != 0) {
      report("kv_heads", "heads",
             fmt::format("{} heads of keys and values do not divide the {} attention heads", attention_.kv_heads,
                         attention_.q_heads));
    }
  }

  /// Embedding, attention, norms and routers; then the widest MLP that the rest holds.
  void fill_dense() {
    const std::int64_t dense = value("dense", 0), experts = value("experts", 0);
    spec_.vocab = value("vocab", usual_vocab);
    if (!stated("vocab")) assume("a vocabulary of {}", spec_.vocab);
    const std::int64_t attention = 2 * hidden_ * hidden_ + 2 * hidden_ * attention_.kv_width();
    const std::int64_t per_layer = attention + 2 * hidden_ + hidden_ * experts;
    const std::int64_t embedding = spec_.vocab * hidden_;
    std::int64_t fixed = embedding + hidden_ + layers_ * per_layer;
    spec_.tied_embeddings = fixed + embedding > dense;
    if (!spec_.tied_embeddings) fixed += embedding;
    assume("the head {}", spec_.tied_embeddings ? "tied to the embedding" : "not tied to the embedding");
    const std::int64_t mlp_unit = 3 * hidden_ * layers_;  // of width 1 in every layer
    width_ = std::min((dense - fixed) / mlp_unit, limits::width);
    if (fixed > dense || (experts == 0 && width_ == 0)) {
      report("dense", "sketch",
             fmt::format(
                 "{} parameters are too few: embedding, attention and norms of {} layers of hidden size {} take {}",
                 format_count(dense), layers_, hidden_, format_count(fixed)),
             "state a smaller vocab, hidden or layers");
      return;
    }
    if (experts > 0 && width_ > 0) {
      assume("a shared expert of width {} in every layer, which holds the other dense parameters", width_);
    } else if (experts == 0) {
      assume("gated MLPs of width {}", width_);
    }
    dense_lump_ = dense - fixed - width_ * mlp_unit;
  }

  void fill_experts() {
    const std::int64_t experts = value("experts", 0), expert = value("expert", 0);
    if (experts == 0) return;
    moe_.experts = experts;
    moe_.top_k = value("top_k", std::min<std::int64_t>(2, experts));
    if (!stated("top_k")) assume("{} experts per token", moe_.top_k);
    if (moe_.top_k > experts)
      report("top_k", "top_k", fmt::format("{} experts per token of only {}", moe_.top_k, experts));
    const std::int64_t unit = 3 * hidden_ * layers_ * experts;  // below 2^52, limits.hpp
    moe_.expert_intermediate = std::min(expert / unit, limits::width);
    if (moe_.expert_intermediate == 0) {
      report("expert", "sketch",
             fmt::format("{} parameters are too few for {} experts in each of {} layers", format_count(expert), experts,
                         layers_));
      return;
    }
    assume("experts in every layer, gated and of width {}", moe_.expert_intermediate);
    moe_.shared_intermediate = width_;
    expert_lump_ = expert - moe_.expert_intermediate * unit;
  }

  void finish() {
    spec_.name = file_->text;
    spec_.family = "sketch";
    spec_.sketch = true;
    spec_.hidden = hidden_;
    LayerSpec layer{.attention = attention_, .mlp = std::nullopt, .moe = std::nullopt};
    if (moe_.experts > 0) {
      layer.moe = moe_;
    } else {
      layer.mlp = MlpSpec{.intermediate = width_, .bias = false};
    }
    spec_.layers.assign(static_cast<std::size_t>(layers_), layer);
    spec_.parameters = list_parameters(spec_, *find_family("mixtral"));
    add_lump("sketch.other", dense_lump_, false);
    add_lump("sketch.other_experts", expert_lump_, true);
    for (const auto& [key, entry] : entries_) {
      spec_.places.emplace(key == "heads" ? "q_heads" : key, place_in(file_, entry.begin, entry.end));
    }
  }

  void add_lump(std::string name, std::int64_t numel, bool expert) {
    if (numel == 0) return;
    ParameterDecl& lump = spec_.parameters.emplace_back();
    lump.name = std::move(name);
    lump.shape = {numel};
    lump.numel = numel;
    lump.expert = expert;
    spec_.assumptions.push_back(
        fmt::format("{} {}parameters fit into no whole layer and are one parameter of their own", format_count(numel),
                    expert ? "expert " : ""));
  }

  template <class... Values>
  void assume(std::string_view what, const Values&... values) {
    spec_.assumptions.push_back("assumed, since the sketch does not say: " +
                                fmt::format(fmt::runtime(what), values...));
  }

  void report(const std::string& key, std::string_view code, std::string message, std::string help = {}) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) {
      report_at(0, file_->text.size(), code, std::move(message), std::move(help));
    } else {
      report_at(found->second.begin, found->second.end, code, std::move(message), std::move(help));
    }
  }

  void report_at(std::size_t begin, std::size_t end, std::string_view code, std::string message,
                 std::string help = {}) {
    Diagnostic diagnostic;
    diagnostic.code = fmt::format("model.{}", code);
    diagnostic.place = place_in(file_, begin, end);
    diagnostic.message = std::move(message);
    diagnostic.help = std::move(help);
    diagnostics_.push_back(std::move(diagnostic));
  }

  std::shared_ptr<const SourceFile> file_;
  std::map<std::string, Entry> entries_;
  Diagnostics diagnostics_;
  ModelSpec spec_;
  AttentionSpec attention_;
  MoeSpec moe_;
  std::int64_t hidden_ = 0, layers_ = 0, width_ = 0;
  std::int64_t dense_lump_ = 0, expert_lump_ = 0;
};

}  // namespace

Result<ModelSpec> read_sketch(std::string_view text) { return SketchReader(text).read(); }

}  // namespace plimsoll
