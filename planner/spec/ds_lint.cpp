// What does DeepSpeed do with every key?  The rules of its sections: the top level and old sections are dictionaries in
// which known keys are looked up, the rest is never seen; newer sections are pydantic models that forbid unknown keys,
// convert values, take a field by its name or its alias but not by both, and drop values that are "auto".
#include "planner/spec/ds_lint.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "planner/base/format.hpp"
#include "planner/spec/ds_keys.hpp"
#include "planner/spec/ds_values.hpp"

namespace plimsoll {
namespace {

constexpr int unknown_limit = 20;  ///< unknown keys reported per section, so that a broken file stays readable

/// Sections whose null DeepSpeed takes for their absence; that of another it asks for its keys, and fails.
constexpr std::array<std::string_view, 3> sections_or_null = {"bf16", "aio", "expert_parallel"};

constexpr std::array<std::string_view, 17> resolved_by_trainer = {
    "/train_batch_size",
    "/train_micro_batch_size_per_gpu",
    "/gradient_accumulation_steps",
    "/gradient_clipping",
    "/fp16/enabled",
    "/bf16/enabled",
    "/optimizer/params/lr",
    "/optimizer/params/betas",
    "/optimizer/params/eps",
    "/optimizer/params/weight_decay",
    "/scheduler/params/warmup_min_lr",
    "/scheduler/params/warmup_max_lr",
    "/scheduler/params/warmup_num_steps",
    "/scheduler/params/total_num_steps",
    "/zero_optimization/reduce_bucket_size",
    "/zero_optimization/stage3_prefetch_bucket_size",
    "/zero_optimization/stage3_param_persistence_threshold",
};

void report(DsLint& lint, Severity severity, const char* code, Place place, std::string message,
            std::string help = {}) {
  lint.diagnostics.push_back({severity, code, std::move(place), std::move(message), {}, std::move(help)});
}

std::string stages_in_words(Stages stages) {
  switch (stages) {
    case stage_3: return "stage 3";
    case stages_1_2: return "stages 1 and 2";
    default: return "stages 1 to 3";
  }
}

/// The JSON pointer of a key in a ds_config.json, whatever file the node stands in.
std::string pointer_of(std::string_view section, std::string_view name) { return fmt::format("{}/{}", section, name); }

void lint_unknown(const Node::Member& member, std::string_view section, UnknownKeys rule, DsLint& lint) {
  if (rule == UnknownKeys::not_judged || rule == UnknownKeys::passed_on) return;
  const std::string advice = advice_on(section, member.key);
  const std::string where = section.empty() ? "a ds_config" : std::string(section.substr(1));
  if (rule == UnknownKeys::rejected && is_auto(member.value)) {
    lint.ignored.insert(member.value->pointer());
    report(
        lint, Severity::warning, "ds.unknown", member.value->key_place(),
        fmt::format("{} is no key of {}: DeepSpeed drops it because it is \"auto\", and would reject any other value",
                    member.value->pointer(), where),
        advice);
    return;
  }
  if (rule == UnknownKeys::rejected) {
    report(lint, Severity::error, "ds.unknown", member.value->key_place(),
           fmt::format("{} is no key of {}: DeepSpeed rejects the file (\"Extra inputs are not permitted\")",
                       member.value->pointer(), where),
           advice);
    return;
  }
  lint.ignored.insert(member.value->pointer());
  report(lint, Severity::warning, "ds.unknown", member.value->key_place(),
         fmt::format("{} is no key of {}: DeepSpeed never looks at it", member.value->pointer(), where), advice);
}

bool has_type(const Node& value, const DsKey& key, bool converts) {
  switch (key.type) {
    case KeyType::boolean:
      return value.kind() == Node::Kind::boolean || (converts && boolean_value(&value).has_value());
    case KeyType::integer:
      return value.kind() == Node::Kind::integer || (converts && integer_value(&value).has_value());
    case KeyType::number: return value.is_number() || (converts && number_value(&value).has_value());
    case KeyType::text: return value.is_string();
    case KeyType::section: return value.is_object();
    case KeyType::list: return value.is_array();
    case KeyType::any: return true;
  }
  return false;
}

const char* in_words(KeyType type) {
  switch (type) {
    case KeyType::boolean: return "true or false";
    case KeyType::integer: return "a whole number";
    case KeyType::number: return "a number";
    case KeyType::text: return "a string";
    case KeyType::section: return "an object";
    case KeyType::list: return "an array";
    case KeyType::any: return "anything";
  }
  return "";
}

void lint_choice(const Node& value, const DsKey& key, DsLint& lint) {
  if (key.choices.empty() || !value.is_string()) return;
  std::vector<std::string> choices;
  for (std::string_view rest = key.choices; !rest.empty();) {
    const std::size_t bar = std::min(rest.find('|'), rest.size());
    choices.emplace_back(rest.substr(0, bar));
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  const auto same = [&](const std::string& choice) {
    return choice == value.as_string() || (key.any_case && in_lower_case(choice) == in_lower_case(value.as_string()));
  };
  if (std::any_of(choices.begin(), choices.end(), same)) return;
  std::string legal;
  for (const std::string& choice : choices) legal += (legal.empty() ? "" : ", ") + choice;
  report(lint, Severity::error, "ds.choice", value.place(),
         fmt::format("{} is {}, which DeepSpeed does not take", value.pointer(), value.source().substr(0, 40)),
         "legal values: " + legal);
}

void report_type(const Node& value, const DsKey& key, DsLint& lint, std::string help = {}) {
  report(lint, Severity::error, "ds.type", value.place(),
         fmt::format("{} is {}, must be {}", value.pointer(), value.kind_in_words(), in_words(key.type)),
         std::move(help));
}

/// DeepSpeed's dictionaries take null for the absence of a number or switch; its models and sections do not.
void lint_null(const Node& value, const DsKey& key, bool pydantic, DsLint& lint) {
  const bool section = key.type == KeyType::section && !key.nullable &&
                       std::find(sections_or_null.begin(), sections_or_null.end(), key.name) == sections_or_null.end();
  const bool refused =
      (pydantic && !key.nullable) || section || pointer_of(key.section, key.name) == "/zero_optimization";
  if (refused) report_type(value, key, lint, "leave the key out for its default");
}

/// "auto" where nobody resolves it.
void lint_auto(const Node& value, const DsKey& key, bool pydantic, DsLint& lint) {
  if (!pydantic && key.type == KeyType::section) return report_type(value, key, lint);
  report(lint, Severity::note, "ds.auto", value.place(),
         fmt::format("{}: nobody resolves \"auto\" here; {}", value.pointer(),
                     pydantic ? "DeepSpeed drops it and takes its default" : "DeepSpeed gets the word itself"));
  if (!pydantic) lint_choice(value, key, lint);
}

/// @returns whether the value can be used
bool lint_value(const Node& value, const DsKey& key, UnknownKeys rule, DsLint& lint) {
  const bool pydantic = rule == UnknownKeys::rejected;
  if (key.effect == Effect::removed) return false;
  if (value.is_null()) {
    lint_null(value, key, pydantic, lint);
    return false;
  }
  if (is_auto(&value)) {
    if (trainer_resolves(pointer_of(key.section, value.key())) || key.default_json == "\"auto\"") return true;
    lint_auto(value, key, pydantic, lint);
    return false;
  }
  if (!has_type(value, key, pydantic)) {
    const bool fraction = value.kind() == Node::Kind::number && key.type == KeyType::integer;
    report_type(value, key, lint,
                fraction ? "5e8 is a whole number, 0.9 * hidden * hidden often is none: round it" : "");
    return false;
  }
  if ((key.type == KeyType::integer || key.type == KeyType::number || key.type == KeyType::boolean) &&
      is_converted(value, key.type == KeyType::boolean))
    report(lint, Severity::warning, "ds.type", value.place(),
           fmt::format("{} is {}; DeepSpeed converts it to {}", value.pointer(), value.kind_in_words(),
                       in_words(key.type)));
  if (key.type == KeyType::integer || key.type == KeyType::number) {
    const double number = *number_value(&value);
    const bool low = !(number >= static_cast<double>(key.min));
    if (low || number > static_cast<double>(key.max)) {
      report(lint, Severity::error, "ds.range", value.place(),
             fmt::format("{} is {}, must be at {} {}", value.pointer(), value.source().substr(0, 40),
                         low ? "least" : "most", low ? key.min : key.max));
      return false;
    }
  }
  lint_choice(value, key, lint);
  return true;
}

/// A switch that is on, a number that asks for something, a section that is enabled or has no such switch.
bool asks_for_something(const Node& value) {
  if (value.is_object()) {
    const Node* enabled = value.find("enabled");
    return enabled == nullptr ? !value.members().empty() : boolean_value(enabled).value_or(true);
  }
  if (value.is_number()) return value.as_double() > 0;
  return !value.is_null() && boolean_value(&value).value_or(true);
}

/// 0.19.8 raises on the very name; what older versions did with it is computed by nothing here.
void lint_removed(const Node& value, const DsKey& key, DsLint& lint) {
  if (lint.measured)
    return report(
        lint, Severity::error, "ds.removed", value.key_place(),
        fmt::format("{}: DeepSpeed 0.19.8 raises on this key, whatever its value: {}", value.pointer(), key.note),
        "leave it out");
  if (asks_for_something(value))
    return report(lint, Severity::error, "plan.unsupported", value.key_place(),
                  fmt::format("{} is not built, and DeepSpeed 0.19.8 has no more of it: {}", value.pointer(), key.note),
                  "leave it out for an answer without it");
  report(lint, Severity::warning, "ds.removed", value.key_place(),
         fmt::format("{}: DeepSpeed 0.19.8 raises on this key, whatever its value", value.pointer()), "leave it out");
}

/// Deprecated, dead, a second name, or without effect at this stage.
void lint_effect(const Node::Member& member, const DsKey& key, DsLint& lint) {
  const Node& value = *member.value;
  if (key.effect == Effect::removed) return lint_removed(value, key, lint);
  const DsKey* section_key = key.section.empty() ? nullptr : find_key("", key.section.substr(1));
  const bool section_is_dead = section_key != nullptr && section_key->effect == Effect::unused;
  if (key.effect == Effect::unused) {
    lint.ignored.insert(value.pointer());
    if (!section_is_dead)
      report(lint, Severity::warning, "ds.unused", value.key_place(),
             fmt::format("{} has no effect: {}", value.pointer(), key.note));
    return;
  }
  if (key.effect == Effect::deprecated)
    report(lint, Severity::warning, "ds.deprecated", value.key_place(),
           fmt::format("{} is deprecated", value.pointer()), std::string(key.note));
  if (member.key == key.alias)
    report(lint, Severity::note, "ds.alias", value.key_place(),
           fmt::format("{} is DeepSpeed's other name of {}; it takes both", value.pointer(), key.name));
  if (((key.stages >> lint.stage) & 1) != 0) return;
  lint.ignored.insert(value.pointer());
  const std::optional<std::string> device = text_value(value.find("device"));
  if (key.type == KeyType::section && (value.is_null() || (value.is_object() && device.value_or("none") == "none")))
    return;
  report(lint, Severity::warning, "ds.stage", value.key_place(),
         fmt::format("{} has no effect at stage {}: DeepSpeed uses it at {} only", value.pointer(), lint.stage,
                     stages_in_words(key.stages)));
}

}  // namespace

bool trainer_resolves(std::string_view pointer) {
  return std::find(resolved_by_trainer.begin(), resolved_by_trainer.end(), pointer) != resolved_by_trainer.end();
}

void lint_section(const Node& object, std::string_view section, DsLint& lint) {
  const DsSection* row = find_section(section);
  const UnknownKeys rule = row == nullptr ? UnknownKeys::not_judged : row->unknown;
  std::vector<const DsKey*> seen;
  int unknown = 0;
  for (const Node::Member& member : object.members()) {
    const DsKey* key = find_key(section, member.key);
    if (key == nullptr) {
      if (++unknown > unknown_limit) {
        if (rule == UnknownKeys::ignored) lint.ignored.insert(member.value->pointer());
        continue;
      }
      lint_unknown(member, section, rule, lint);
      if (section.empty() && member.key == "moe" && member.value->is_object())
        lint_section(*member.value, "/moe", lint);
      continue;
    }
    const bool twice = std::find(seen.begin(), seen.end(), key) != seen.end();
    if (twice && object.find(key->name) != nullptr && !key->alias.empty() && object.find(key->alias) != nullptr)
      report(lint, Severity::error, "ds.both_names", member.value->key_place(),
             fmt::format("{} and {} are one setting; DeepSpeed rejects a file that has both", key->name, key->alias));
    seen.push_back(key);
    lint_effect(member, *key, lint);
    const bool usable = lint_value(*member.value, *key, rule, lint);
    if (usable && key->type == KeyType::section) lint_section(*member.value, pointer_of(section, key->name), lint);
    if (section.empty() && key->name == "zero_optimization" && member.value->is_object())
      lint_section(*member.value, "/zero_optimization", lint);
  }
}

}  // namespace plimsoll
