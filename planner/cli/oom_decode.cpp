// Matching sizes with tensors and ranking them (planner/cli/oom_decode.hpp).
#include "planner/cli/oom_decode.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include "planner/account/ledger.hpp"
#include "planner/base/format.hpp"
#include "planner/cli/oom_formulas.hpp"
#include "planner/cli/oom_match.hpp"
#include "planner/cli/trace_comparison.hpp"
#include "planner/spec/presets.hpp"
#include "planner/spec/read_model.hpp"

namespace plimsoll {
namespace {

constexpr std::size_t most_candidates = 12;
/// What an assumption costs a candidate; everything that is known for sure stays below.
constexpr double assumption_cost = 2;
constexpr double preset_cost = 3;

/// What speaks against a tensor that the call with which a traceback ends does not allocate.
constexpr double wrong_asker_cost = 1;
/// What a traceback that names a tensor's function is worth: as its last one, or as one around it.
constexpr double innermost_gain = 1.5;
constexpr double outer_gain = 0.75;

/// Tokens of a micro-batch that are assumed at most.
constexpr double most_tokens = 0x1p18;

/// Sizes of buckets where none are stated, in elements: DeepSpeed's default first, then what configurations in circulation
/// state.
struct UsualSizes {
  Letter letter;
  std::array<double, 3> values;
};
constexpr std::array<UsualSizes, 4> usual_sizes = {{{Letter::B, {5e8, 2e8, 1e9}},
                                                    {Letter::G, {5e8, 2e8, 1e9}},
                                                    {Letter::Q, {5e7, 5e8, 2e8}},
                                                    {Letter::U, {1e9, 1e8, 5e8}}}};

int power_of(const OomFormula& formula, Letter letter) {
  return static_cast<int>(std::count(formula.over.begin(), formula.over.end(), letter)) -
         static_cast<int>(std::count(formula.under.begin(), formula.under.end(), letter));
}

/// The formula with numbers in the place of its letters.
std::string numbers_of(const OomFormula& formula, const KnownSizes& sizes) {
  std::string text = fmt::format("{:g}", formula.coefficient);
  for (const Letter letter : formula.over) text += fmt::format("*{:.0f}", *sizes[letter]);
  for (const Letter letter : formula.under) text += fmt::format("/{:.0f}", *sizes[letter]);
  return text;
}

double value_of(const OomFormula& formula, const KnownSizes& sizes) {
  double value = formula.coefficient;
  for (const Letter letter : formula.over) value *= *sizes[letter];
  for (const Letter letter : formula.under) value /= *sizes[letter];
  return value;
}

/// How much the stage, the offload and so on speak against a kind of tensor.
double against(const OomFormula& formula, const KnownSizes& sizes) {
  double cost = 0;
  const bool of_parameters = power_of(formula, Letter::P) != 0;
  if (sizes.stage) {
    const int stage = *sizes.stage;
    if (formula.kind == TensorKind::shard && stage == 0) cost += 1;
    if (formula.kind == TensorKind::flat && of_parameters && stage != 1 && stage != 2) cost += stage == 3 ? 0.8 : 0.3;
    if (formula.kind == TensorKind::whole && of_parameters && stage > 0) cost += 0.5;
    if (formula.kind == TensorKind::gathered && stage < 3) cost += 0.6;
  }
  if (sizes.offload_optimizer.value_or(false) && formula.kind == TensorKind::shard) cost += 0.6;
  if (sizes.lora.value_or(false) && of_parameters && formula.hint == Hint::optimizer) cost += 1;
  if (sizes.attention && formula.kind == TensorKind::attention) cost += *sizes.attention == "eager" ? -0.3 : 1.5;
  return cost;
}

/// One missing letter, chosen so that the formula gives the printed size; nothing if no plausible value does.
struct Solution {
  double value = 0;
  double cost = 0;
  std::string words;
};

class Decoder {
 public:
  Decoder(const OomMessage& message, const RankProgram* program)
      : message_(message), asker_(asker_of(message)), program_(program) {
    if (program != nullptr) note_forward();
  }

  void try_formulas(const KnownSizes& sizes, double extra_cost) {
    for (const OomFormula& formula : oom_formulas()) {
      if (is_repeated(formula, sizes)) continue;
      const UsualSizes* usual = usual_for(formula, sizes);
      if (usual == nullptr) {
        try_formula(formula, sizes, extra_cost, {});
      } else if (sizes.model.empty()) {
        try_usual(formula, sizes, *usual);
      }
    }
  }

  void try_program() {
    if (program_ == nullptr) return;
    struct Group {
      const BufferDecl* buffer;
      std::string name;
      int count;
    };
    std::map<std::tuple<std::string, std::int64_t, Category>, Group> groups;
    for (const BufferDecl& buffer : program_->buffers) {
      if ((buffer.pool == Lane::host) != message_.on_host) continue;
      const auto match = match_size(message_, static_cast<double>(buffer.size.count), 0);
      if (!match) continue;
      std::string name = without_layer(buffer.name);
      Group& group =
          groups.try_emplace({name, buffer.size.count, buffer.category}, Group{&buffer, name, 0}).first->second;
      ++group.count;
    }
    for (const auto& [key, group] : groups) {
      const std::string words =
          fmt::format("{} ({}, {} of them)", group.name, name_of(group.buffer->category), group.count);
      if (attach(*group.buffer, words)) continue;
      OomCandidate candidate;
      candidate.tensor = fmt::format("{} ({})", group.name, name_of(group.buffer->category));
      candidate.formula = formula_of(*group.buffer);
      candidate.in_program = {words};
      candidate.remedy = remedy_for(group.buffer->category);
      add(std::move(candidate), static_cast<double>(group.buffer->size.count), 0, asked_cost(*group.buffer) - 0.5);
    }
  }

  /// The two sizes that stand for a small tensor: the pool takes a whole segment for it.
  void try_pool() {
    const auto say = [&](double bytes, const char* tensor) {
      if (!message_.whole_segments || std::abs(message_.requested.bytes - bytes) > 1) return;
      OomCandidate candidate;
      candidate.tensor = tensor;
      candidate.formula = "a new segment of the caching allocator";
      candidate.remedy = "the memory was full before: look at what is resident and at the peak (plimsoll ledger)";
      add(std::move(candidate), bytes, 0, 0.25);
    };
    say(2 << 20, "any tensor of up to 1 MiB");
    say(20 << 20, "any tensor between 1 and 10 MiB");
  }

  /// A candidate for which nothing had to be guessed.
  bool is_sure() const {
    return std::any_of(candidates_.begin(), candidates_.end(),
                       [](const OomCandidate& candidate) { return candidate.unlikeliness < assumption_cost; });
  }

  std::vector<OomCandidate> sorted() && {
    for (OomCandidate& candidate : candidates_) {
      if (program_ != nullptr) candidate.unlikeliness += candidate.in_program.empty() ? 1.0 : candidate.asked - 1.0;
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const OomCandidate& a, const OomCandidate& b) { return a.unlikeliness < b.unlikeliness; });
    if (candidates_.size() > most_candidates) candidates_.resize(most_candidates);
    return std::move(candidates_);
  }

 private:
  void note_forward() {
    in_forward_.assign(program_->buffers.size(), false);
    for (const PhaseSpan& phase : program_->phases) {
      const std::string_view name = phase.name;
      if (name.size() < 7 || name.substr(name.size() - 7) != "forward") continue;
      for (OpId op = phase.first; op < phase.end; ++op) {
        if (const auto* alloc = std::get_if<Alloc>(&program_->ops[op].action)) in_forward_[alloc->buffer] = true;
      }
    }
  }

  /// Formulas that say the same as another one under these sizes.
  static bool is_repeated(const OomFormula& formula, const KnownSizes& sizes) {
    if (formula.kind == TensorKind::shard && sizes[Letter::N] == 1.0) return true;
    const bool local = power_of(formula, Letter::El) > 0 && power_of(formula, Letter::Lm) == 0;
    return local && sizes[Letter::El] == sizes[Letter::E];
  }

  static const UsualSizes* usual_for(const OomFormula& formula, const KnownSizes& sizes) {
    for (const UsualSizes& usual : usual_sizes) {
      if (power_of(formula, usual.letter) != 0 && !sizes[usual.letter]) return &usual;
    }
    return nullptr;
  }

  void try_usual(const OomFormula& formula, KnownSizes sizes, const UsualSizes& usual) {
    for (const double value : usual.values) {
      const bool is_default = value == usual.values.front();
      sizes.set(usual.letter, value);
      try_formula(formula, sizes, is_default ? 0.3 : assumption_cost,
                  {fmt::format("{}{:g} elements", is_default ? "DeepSpeed's default of " : "", value)});
    }
  }

  void try_formula(const OomFormula& formula, KnownSizes sizes, double cost, std::vector<std::string> assumed) {
    if (!sizes.model.empty()) assumed.push_back(fmt::format("sizes of {}", sizes.model));
    OomFormula stated = formula;
    spell_out_tokens(stated, sizes);
    std::vector<Letter> missing;
    for (const std::vector<Letter>* side : {&stated.over, &stated.under}) {
      for (const Letter letter : *side) {
        if (!sizes[letter] && std::find(missing.begin(), missing.end(), letter) == missing.end())
          missing.push_back(letter);
      }
    }
    // Attention scores of an unknown batch: one sequence.
    if (missing.size() == 2 && missing.front() == Letter::b) {
      sizes.set(Letter::b, 1);
      assumed.emplace_back("micro_batch 1");
      missing.erase(missing.begin());
      cost += 0.3;
    }
    if (missing.size() > 1) return;
    if (missing.size() == 1) {
      const auto solution = solve(stated, sizes, missing.front());
      if (!solution) return;
      sizes.set(missing.front(), solution->value);
      assumed.push_back(solution->words);
      cost += solution->cost;
    }
    OomCandidate candidate;
    candidate.tensor = formula.tensor;
    candidate.formula = fmt::format("{} = {}", letters_of(stated), numbers_of(stated, sizes));
    candidate.remedy = formula.remedy;
    candidate.assumed = std::move(assumed);
    const double tolerance = power_of(stated, Letter::P) != 0 ? sizes.parameters_tolerance : 0;
    cost += formula.prior + against(formula, sizes);
    if (!asks_for(asker_, formula.kind)) cost += wrong_asker_cost;
    // The call that the traceback ends with asked; those around it tell where the step was.
    if (message_.innermost == formula.hint) {
      cost -= innermost_gain;
    } else if (message_.has(formula.hint) || (formula.kind == TensorKind::logits && names_logits())) {
      cost -= outer_gain;
    }
    kinds_[formula.tensor] = formula.kind;
    add(std::move(candidate), value_of(stated, sizes), tolerance, cost);
  }

  /// The head's product and the loss: either name speaks for logits of both types.
  bool names_logits() const { return message_.has(Hint::head) || message_.has(Hint::logits); }

  /// T = b S where the sequence is known and the batch is not.
  static void spell_out_tokens(OomFormula& formula, const KnownSizes& sizes) {
    if (sizes[Letter::T] || !sizes[Letter::S]) return;
    for (std::size_t i = 0; i < formula.over.size(); ++i) {
      if (formula.over[i] != Letter::T) continue;
      formula.over[i] = Letter::b;
      formula.over.insert(formula.over.begin() + static_cast<std::ptrdiff_t>(i) + 1, Letter::S);
      return;
    }
  }

  std::optional<Solution> solve(const OomFormula& formula, KnownSizes sizes, Letter letter) const {
    const int power = power_of(formula, letter);
    if (letter == Letter::k && !sizes[Letter::E]) return std::nullopt;  // a dense model
    sizes.set(letter, 1);
    const double rest = value_of(formula, sizes);
    const double exact = power == 0 ? 0 : std::pow(message_.requested.bytes / rest, 1.0 / power);
    for (const auto& [value, cost, words] : plausible_values(letter, exact)) {
      sizes.set(letter, value);
      if (match_size(message_, value_of(formula, sizes), 0)) return Solution{value, cost, words};
    }
    return std::nullopt;
  }

  static std::vector<Solution> plausible_values(Letter letter, double exact) {
    std::vector<Solution> values;
    if (!(exact >= 0.99 && exact < 1e9)) return values;
    const double whole = std::round(exact);
    switch (letter) {
      case Letter::T:
      case Letter::S:
        for (const double step : {1024.0, 512.0, 256.0, 128.0}) {
          const double value = std::round(exact / step) * step;
          if (value < step || value > most_tokens) continue;
          values.push_back({value, assumption_cost + 0.1 * (1024 / step - 1),
                            fmt::format("{:.0f} tokens{}", value, letter == Letter::S ? " a sequence" : "")});
        }
        break;
      case Letter::b:
        if (whole <= 512)
          values.push_back({whole, whole == 1 ? 0.3 : assumption_cost, fmt::format("micro_batch {:.0f}", whole)});
        break;
      case Letter::N: {
        const auto ranks = static_cast<std::int64_t>(whole);
        const bool usual = ranks >= 2 && ranks <= 4096 && ((ranks & (ranks - 1)) == 0 || ranks % 8 == 0);
        if (usual) values.push_back({whole, assumption_cost, fmt::format("{:.0f} GPUs", whole)});
        break;
      }
      case Letter::k:
        if (whole <= 16) values.push_back({whole, assumption_cost, fmt::format("top_k {:.0f}", whole)});
        break;
      default: break;
    }
    return values;
  }

  void add(OomCandidate candidate, double bytes, double tolerance, double cost) {
    const auto match = match_size(message_, bytes, tolerance);
    if (!match) return;
    candidate.bytes = Bytes(static_cast<std::int64_t>(std::llround(bytes)));
    candidate.relative_error = match->relative_error;
    candidate.unlikeliness = cost + 0.3 * match->distance;
    const bool known = std::any_of(candidates_.begin(), candidates_.end(), [&](const OomCandidate& other) {
      return other.tensor == candidate.tensor && other.bytes == candidate.bytes;
    });
    if (!known) candidates_.push_back(std::move(candidate));
  }

  /// Who asked tells for a buffer of the program, or against it.
  double asked_cost(const BufferDecl& buffer) const {
    if (asker_ == Asker::unknown || buffer.category == Category::temporaries) return 0;
    const bool then = asker_ != Asker::layer || message_.has(Hint::backward) ||
                      in_forward_[static_cast<std::size_t>(&buffer - program_->buffers.data())];
    return then && asks_for(asker_, buffer.category) ? -outer_gain : wrong_asker_cost;
  }

  /// Notes a buffer of the program with the formulas that explain it.
  bool attach(const BufferDecl& buffer, const std::string& words) {
    bool any = false;
    for (OomCandidate& candidate : candidates_) {
      const auto kind = kinds_.find(candidate.tensor);
      if (kind == kinds_.end() || std::abs(candidate.bytes.count - buffer.size.count) > 512) continue;
      if (!may_be(kind->second, buffer.category)) continue;
      const double cost = asked_cost(buffer);
      candidate.asked = candidate.in_program.empty() ? cost : std::min(candidate.asked, cost);
      candidate.in_program.push_back(words);
      any = true;
    }
    return any;
  }

  const OomMessage& message_;
  Asker asker_;
  const RankProgram* program_;
  std::vector<bool> in_forward_;  ///< by buffer: a forward of the program allocates it
  std::map<std::string, TensorKind> kinds_;
  std::vector<OomCandidate> candidates_;
};

/// Models whose sizes may be tried: those of about the stated number of parameters, else all.
void try_presets(Decoder& decoder, const KnownSizes& sizes) {
  for (const std::string& name : preset_names("models")) {
    const auto model = load_model(name);
    if (!model) continue;
    KnownSizes guess;
    take_model(*model, guess);
    if (const auto stated = sizes[Letter::P]) {
      if (std::abs(*guess[Letter::P] / *stated - 1) > sizes.parameters_tolerance + 0.01) continue;
    }
    for (int i = 0; i < letter_count; ++i) {
      const auto letter = static_cast<Letter>(i);
      if (sizes[letter]) guess.set(letter, *sizes[letter]);
    }
    guess.model = name;
    guess.stage = sizes.stage;
    guess.offload_optimizer = sizes.offload_optimizer;
    guess.lora = sizes.lora;
    guess.attention = sizes.attention;
    decoder.try_formulas(guess, sizes[Letter::P] ? 1 : preset_cost);
  }
}

}  // namespace

std::vector<OomCandidate> decode(const OomMessage& message, const KnownSizes& sizes, const RankProgram* program) {
  Decoder decoder(message, program);
  decoder.try_formulas(sizes, 0);
  decoder.try_program();
  decoder.try_pool();
  const bool some_model = sizes[Letter::V] || sizes[Letter::h] || sizes[Letter::A] || sizes[Letter::E];
  if (!some_model && !decoder.is_sure()) try_presets(decoder, sizes);
  return std::move(decoder).sorted();
}

}  // namespace plimsoll
