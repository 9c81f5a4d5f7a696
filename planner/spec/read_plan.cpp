// What does a plan.json say?  Section by section, every value checked for type and range where it stands.
#include "planner/spec/read_plan.hpp"

#include <fmt/core.h>

#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "planner/base/check.hpp"
#include "planner/base/format.hpp"
#include "planner/spec/ds_lint.hpp"
#include "planner/spec/ds_values.hpp"
#include "planner/spec/limits.hpp"
#include "planner/spec/plan_draft.hpp"
#include "planner/spec/write_plan.hpp"

namespace plimsoll {
namespace {

/// "zero.stage" of {"zero": {"stage": 3}}, and so on in its sections' sections.
void list_keys(const Node& section, const std::string& name, std::vector<std::string>& keys) {
  for (const Node::Member& member : section.members()) {
    const std::string key = name.empty() ? member.key : fmt::format("{}.{}", name, member.key);
    if (!name.empty()) keys.push_back(key);
    if (member.value->is_object()) list_keys(*member.value, key, keys);
  }
}

/// "zero.stage", "trainable.lora.rank": for those who state a key outside of its section.
std::vector<std::string> keys_of_sections() {
  Plan deepspeed, fsdp2;
  deepspeed.moe.implementation = MoeImplementation::native;
  deepspeed.moe.num_experts = {1};
  deepspeed.recompute.every = 2;
  deepspeed.loss_chunk = 1;
  deepspeed.lora = LoraOptions{1, {"q_proj"}, true, false, 0.1};
  deepspeed.zero.stage = 3;
  fsdp2.engine = Engine::fsdp2;
  std::vector<std::string> keys;
  for (const Plan& plan : {deepspeed, fsdp2}) {
    const auto document = parse_document(std::make_shared<SourceFile>(SourceFile{"", write_plan_json(plan)}));
    CHECK(document, "a plan that is written can be read");
    list_keys(document->root(), "", keys);
  }
  return keys;
}

/// Takes values of one object into the draft, with their places.
struct Section {
  Section(const Node& object, std::string pointer_in_plan, PlanDraft& into)
      : reader(object, into.reading.diagnostics, "plan"), pointer(std::move(pointer_in_plan)), draft(into) {
    draft.state(pointer, object);
  }

  ObjectReader reader;
  std::string pointer;
  PlanDraft& draft;

  void state(const char* key) { draft.state(pointer + "/" + key, *reader.find(key)); }

  void boolean(const char* key, bool& field) {
    if (const auto value = reader.boolean(key)) field = *value, state(key);
  }
  template <class Integer>
  void integer(const char* key, Integer& field, std::int64_t min, std::int64_t max) {
    if (const auto value = reader.integer(key, min, max)) field = static_cast<Integer>(*value), state(key);
  }
  void number(const char* key, double& field, double min, double max) {
    if (const auto value = reader.number(key, min, max)) field = *value, state(key);
  }
  void report_unknown() {
    if (!reader.unknown().empty()) reader.report_unknown(Severity::error, keys_of_sections());
  }
  /// The words name the values of Enum in their order.
  template <class Enum>
  void word(const char* key, Enum& field, const std::vector<std::string>& words) {
    if (const auto value = reader.choice(key, words)) field = static_cast<Enum>(*value), state(key);
  }
  void type(const char* key, DType& field, const std::vector<std::pair<std::string, DType>>& types) {
    std::vector<std::string> words;
    words.reserve(types.size());
    for (const auto& [name, unused] : types) words.push_back(name);
    if (const auto value = reader.choice(key, words)) field = types[*value].second, state(key);
  }
};

/// Keys of the contract that nothing computes yet: more than 1 is refused.
void read_other_parallelism(Section& top) {
  for (const char* key : {"tensor_parallel", "pipeline_parallel", "context_parallel"}) {
    int value = 1;
    top.integer(key, value, 1, limits::world);
    if (value > 1)
      top.draft.unsupported(
          top.reader.place(key), fmt::format("/{} is {}: not built yet, only 1 is answered", key, value),
          "leave it out, and use zero.stage 3 (or engine fsdp2) and expert_parallel to shard the model");
  }
}

void read_recompute(Section& top) {
  const Node* value = top.reader.find("recompute");
  if (value == nullptr || value->is_null()) return;
  int& every = top.draft.plan.recompute.every;
  if (value->is_object()) {
    Section object(*value, "/recompute", top.draft);
    every = static_cast<int>(object.reader.required_integer("every", 1, limits::layers));
    object.report_unknown();
  } else if (const auto word = top.reader.choice("recompute", {"none", "full"})) {
    every = static_cast<int>(*word);
    top.state("recompute");
  }
}

void read_loss(Section& top) {
  const Node* value = top.reader.find("loss");
  if (value == nullptr || value->is_null()) return;
  std::int64_t& chunk = top.draft.plan.loss_chunk;
  if (value->is_object()) {
    Section object(*value, "/loss", top.draft);
    chunk = object.reader.required_integer("chunked", 1, limits::tokens);
    object.report_unknown();
  } else if (top.reader.choice("loss", {"full"})) {
    chunk = 0;
    top.state("loss");
  }
}

void read_moe(Section& top) {
  const Node* value = top.reader.object("moe");
  if (value == nullptr) return;
  Section moe(*value, "/moe", top.draft);
  MoeOptions& options = top.draft.plan.moe;
  moe.word("implementation", options.implementation, {"native", "autoep", "grouped", "loop", "fused"});
  moe.boolean("leaf", options.leaf);
  moe.number("capacity_factor", options.capacity_factor, 0.0, 1e6);
  moe.integer("min_capacity", options.min_capacity, 0, limits::tokens);
  moe.boolean("drop_tokens", options.drop_tokens);
  moe.boolean("use_residual", options.use_residual);
  moe.integer("top_k", options.top_k, 1, limits::experts);
  const Node* experts = moe.reader.find("num_experts");
  if (experts != nullptr && experts->is_array()) {
    if (auto numbers = moe.reader.integers("num_experts", 1, limits::experts)) {
      options.num_experts = std::move(*numbers);
      moe.state("num_experts");
    }
  } else if (const auto number = moe.reader.integer("num_experts", 1, limits::experts)) {
    options.num_experts = {*number};
    moe.state("num_experts");
  }
  moe.report_unknown();
}

/// counts: [layer][rank][expert].
void read_counts(const Node& counts, Routing& routing, PlanDraft& draft) {
  constexpr std::int64_t most = limits::bytes / limits::experts;
  const auto wrong = [&](const Node& node, const char* code = "plan.type") {
    constexpr std::size_t longest = 40;
    const bool is_short_number = node.is_number() && node.source().size() <= longest;
    const std::string value = is_short_number                           ? std::string(node.source())
                              : node.is_array() && node.items().empty() ? "an empty array"
                                                                        : node.kind_in_words();
    draft.report(Severity::error, code, node.place(),
                 fmt::format("{} is {}", node.pointer().empty() ? "the document" : node.pointer(), value),
                 fmt::format("counts are whole numbers of tokens from 0 to {}, as an array of layers of ranks of "
                             "experts, at least one of each",
                             format_count(most)));
  };
  routing.counts.clear();
  if (!counts.is_array() || counts.items().empty()) return wrong(counts);
  for (const Node* layer : counts.items()) {
    if (!layer->is_array() || layer->items().empty()) return wrong(*layer);
    auto& ranks = routing.counts.emplace_back();
    for (const Node* rank : layer->items()) {
      if (!rank->is_array() || rank->items().empty()) return wrong(*rank);
      auto& experts = ranks.emplace_back();
      for (const Node* expert : rank->items()) {
        const bool is_whole = expert->kind() == Node::Kind::integer;
        if (!is_whole && !expert->beyond_int64()) return wrong(*expert);
        if (!is_whole || expert->as_int() < 0 || expert->as_int() > most) return wrong(*expert, "plan.range");
        experts.push_back(expert->as_int());
      }
    }
  }
}

/// Counts in a file of their own, {"counts": [...]} or the array itself, relative to the plan's folder.
void read_counts_file(Section& routing, const std::string& name, Routing& options) {
  const Place place = routing.reader.place("file");
  const std::string plan_name = place.file ? place.file->name : "";
  const std::size_t slash = plan_name.rfind('/');
  const bool beside = name.front() != '/' && slash != std::string::npos && !routing.draft.reading_overrides;
  const auto file = routing.draft.context.open(beside ? plan_name.substr(0, slash + 1) + name : name);
  const Result<Document> document = parse_document(file);
  auto& diagnostics = routing.draft.reading.diagnostics;
  diagnostics.insert(diagnostics.end(), document.diagnostics().begin(), document.diagnostics().end());
  if (!document) return;
  const Node& root = document->root();
  read_counts(root.find("counts") != nullptr ? *root.find("counts") : root, options, routing.draft);
}

void read_routing(Section& top) {
  const Node* value = top.reader.object("routing");
  if (value == nullptr) return;
  Section section(*value, "/routing", top.draft);
  Routing& routing = top.draft.plan.routing;
  section.word("kind", routing.kind, {"balanced", "skew", "collapse", "histogram"});
  section.number("max_over_mean", routing.max_over_mean, 1.0, static_cast<double>(limits::experts));
  section.number("share", routing.share, 0.0, 1.0);
  if (const Node* counts = section.reader.find("counts")) {
    read_counts(*counts, routing, top.draft);
    section.state("counts");
  }
  if (const auto file = section.reader.string("file"); file && !file->empty()) {
    read_counts_file(section, *file, routing);
    section.state("file");
  }
  section.report_unknown();
}

void read_optimizer(Section& top) {
  const Node* value = top.reader.object("optimizer");
  if (value == nullptr) return;
  Section section(*value, "/optimizer", top.draft);
  OptimizerOptions& options = top.draft.plan.optimizer;
  if (const auto type = section.reader.string("type")) {
    if (*type == "adamw" || *type == "adam")
      options.type = *type;
    else
      top.draft.unsupported(section.reader.place("type"), fmt::format("/optimizer/type is {}: not built yet", *type),
                            "answered: adamw, adam (two moments per parameter)");
    section.state("type");
  }
  section.word("implementation", options.implementation, {"fused", "foreach", "single", "deepspeed_cpu", "torch_cpu"});
  section.type("moments", options.moments, {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"int8", DType::int8}});
  section.report_unknown();
}

void read_offload(Section& top) {
  const Node* value = top.reader.object("offload");
  if (value == nullptr) return;
  Section section(*value, "/offload", top.draft);
  OffloadOptions& options = top.draft.plan.offload;
  section.word("optimizer", options.optimizer, {"none", "cpu", "nvme"});
  section.word("parameters", options.parameters, {"none", "cpu", "nvme"});
  section.boolean("pin_memory", options.pin_optimizer);
  if (top.draft.plan.states("/offload/pin_memory")) {
    options.pin_parameters = options.pin_optimizer;
  }
  section.report_unknown();
}

void read_trainable(Section& top) {
  const Node* value = top.reader.find("trainable");
  if (value == nullptr || value->is_null()) return;
  Plan& plan = top.draft.plan;
  const std::optional<LoraOptions> before =
      std::exchange(plan.lora, std::nullopt);  // --set names one key of it at a time
  plan.trainable_patterns.clear();
  if (value->is_array()) {
    if (value->items().empty())
      top.draft.report(Severity::error, "plan.range", value->place(), "/trainable names no parameter to train",
                       R"(patterns as "lm_head", "layers.0.", or "all")");
    if (auto patterns = top.reader.strings("trainable")) plan.trainable_patterns = std::move(*patterns);
  } else if (value->is_object()) {
    Section object(*value, "/trainable", top.draft);
    if (const Node* lora = object.reader.object("lora")) {
      Section section(*lora, "/trainable/lora", top.draft);
      plan.lora = before.value_or(LoraOptions{});
      const auto rank = section.reader.integer("rank", 1, limits::width);
      if (section.reader.has("rank")) plan.lora->rank = rank.value_or(1);
      const Node* targets = section.reader.find("targets");
      if (targets != nullptr && targets->is_string() && targets->as_string() == "all-linear")  // as PEFT takes it
        plan.lora->targets = {targets->as_string()};
      else if (auto names = section.reader.strings("targets"))
        plan.lora->targets = std::move(*names);
      if (const auto base = section.reader.choice("base", {"16bit", "nf4"})) plan.lora->base_nf4 = *base == 1;
      if (const auto dtype = section.reader.choice("dtype", {"fp32", "16bit"})) plan.lora->fp32 = *dtype == 0;
      if (const auto dropout = section.reader.number("dropout", 0, 0.99)) plan.lora->dropout = *dropout;
      section.report_unknown();
    }
    object.report_unknown();
  } else {
    top.reader.choice("trainable", {"all"});
  }
  top.state("trainable");
}

void read_fsdp(Section& top) {
  const Node* value = top.reader.object("fsdp");
  if (value == nullptr) return;
  Section section(*value, "/fsdp", top.draft);
  FsdpOptions& options = top.draft.plan.fsdp;
  section.boolean("reshard_after_forward", options.reshard_after_forward);
  section.type("reduce_dtype", options.reduce_dtype,
               {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}});
  section.integer("replicate", options.replicate, 1, limits::world);
  section.report_unknown();
}

/// A version is a word; without quotes it reads as a number.
void read_version(Section& top) {
  const Node* value = top.reader.find("engine_version");
  if (value == nullptr || value->is_null()) return;
  if (value->is_number())
    top.draft.plan.engine_version = std::string(value->source());
  else if (const auto version = top.reader.string("engine_version"))
    top.draft.plan.engine_version = *version;
  else
    return;
  top.state("engine_version");
}

void read_run(Section& top) {
  Plan& plan = top.draft.plan;
  top.word("engine", plan.engine, {"deepspeed", "fsdp2", "ddp", "plimsoll"});
  read_version(top);
  top.integer("world_size", plan.world_size, 1, limits::world);
  top.integer("expert_parallel", plan.expert_parallel, 1, limits::world);
  read_other_parallelism(top);
  top.integer("micro_batch", plan.micro_batch, 1, limits::micro_batch);
  top.integer("sequence", plan.sequence, 1, limits::sequence);
  top.integer("gradient_accumulation", plan.gradient_accumulation, 1, limits::gradient_accumulation);
  top.word("precision", plan.precision, {"bf16", "fp16", "fp32", "bf16_autocast"});
  if (const auto master = top.reader.choice("master_weights", {"fp32", "none"})) {
    plan.master_fp32 = *master == 0;
    top.state("master_weights");
  }
  top.word("attention", plan.attention, {"sdpa", "eager", "flash"});
  top.number("gradient_clipping", plan.gradient_clipping, 0.0, std::numeric_limits<double>::max());
  const std::vector<std::pair<std::string, DType>> types = {
      {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}};
  top.type("gradient_dtype", plan.gradient_dtype, types);
  top.type("communication_dtype", plan.communication_dtype, types);
  top.word("construction", plan.construction, {"zero_init", "meta", "gpu", "cpu"});
  top.boolean("compile", plan.compile);
  top.boolean("expandable_segments", plan.expandable_segments);
}

/// Judges the keys of every section "zero" as DeepSpeed would.
void lint_zero(PlanDraft& draft) {
  DsLint lint{draft.plan.zero.stage, draft.reading.diagnostics, draft.reading.ignored,
              asks_for_measured_version(draft.plan)};
  const auto lint_in = [&](const Document& document) {
    const Node* zero = document.root().find("zero");
    if (zero == nullptr || !zero->is_object()) return;
    lint_section(*zero, "/zero_optimization", lint);
    check_zero_version(*zero, draft);
  };
  if (draft.reading.document) lint_in(*draft.reading.document);
  for (const Document& document : draft.override_files) lint_in(document);
}

}  // namespace

void check_adapters(PlanDraft& draft) {
  if (!draft.plan.lora || draft.plan.lora->rank > 0) return;
  draft.report(Severity::error, "plan.missing", place_of(draft.plan, "/trainable/lora"),
               "/trainable/lora/rank is missing");
}

/// Offload stands in DeepSpeed's section and in the plan's own: one file must not say both.
void check_offload_said_twice(const Node& root, PlanDraft& draft) {
  const Node* zero = root.find("zero");
  const Node* offload = root.find("offload");
  if (zero == nullptr || offload == nullptr) return;
  for (const auto& [section, deprecated, key] : {std::tuple{"offload_optimizer", "cpu_offload", "optimizer"},
                                                 std::tuple{"offload_param", "cpu_offload_param", "parameters"}}) {
    const Node* of_zero = zero->find(section) != nullptr ? zero->find(section) : zero->find(deprecated);
    const Node* of_plan = offload->find(key);
    if (of_zero == nullptr || of_plan == nullptr || !of_plan->is_string()) continue;
    const Node* device = of_zero->find("device");
    const std::string word = of_zero->is_object() ? text_value(device).value_or("none")
                                                  : (boolean_value(of_zero).value_or(false) ? "cpu" : "none");
    if (word == of_plan->as_string()) continue;
    draft.report(
        Severity::error, "plan.contradiction", of_plan->place(),
        fmt::format("{} is {}, but {} says {}", of_plan->pointer(), of_plan->as_string(), of_zero->pointer(), word),
        "leave one of them out");
    draft.reading.diagnostics.back().notes.push_back(
        {(device != nullptr ? device : of_zero)->place(), of_zero->pointer() + " is here"});
  }
}

void read_plan_object(const Node& root, PlanDraft& draft) {
  Section top(root, "", draft);
  read_run(top);
  if (const Node* zero = top.reader.object("zero")) {
    draft.state("/zero", *zero);
    read_zero(*zero, draft);
  }
  read_fsdp(top);
  read_moe(top);
  read_routing(top);
  read_recompute(top);
  read_loss(top);
  read_optimizer(top);
  read_offload(top);
  check_offload_said_twice(root, draft);
  read_trainable(top);
  top.report_unknown();
}

PlanReading read_plan_file(const std::shared_ptr<const SourceFile>& file, const PlanContext& context) {
  PlanDraft draft(context);
  if (file != nullptr) {
    Result<Document> document = parse_document(file);
    draft.reading.diagnostics = document.diagnostics();
    if (!document) return std::move(draft.reading);
    draft.reading.document = *document;
    read_plan_object(draft.reading.document->root(), draft);
  }
  const Place root = place_of(draft.plan, "");
  read_overrides(draft);
  draft.plan.places[""] = root;
  take_defaults(draft);
  if (draft.plan.engine == Engine::deepspeed) lint_zero(draft);
  return std::move(draft.reading);
}

Result<Plan> read_plan(const std::shared_ptr<const SourceFile>& file, const PlanContext& context) {
  PlanReading reading = read_plan_file(file, context);
  if (has_errors(reading.diagnostics)) return std::move(reading.diagnostics);
  return {std::move(reading.plan), std::move(reading.diagnostics)};
}

}  // namespace plimsoll
