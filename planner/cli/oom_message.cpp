// Reading out-of-memory messages (planner/cli/oom_message.hpp).
#include "planner/cli/oom_message.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "planner/spec/document.hpp"

namespace plimsoll {
namespace {

constexpr double mebi = 1 << 20;

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string lowered(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), lower);
  return text;
}

struct Unit {
  std::string_view name;  ///< in small letters
  double bytes, otherwise;
};
// Longer names first, so that "gib" is no "g".
constexpr std::array<Unit, 16> units = {{{"bytes", 1, 0},
                                         {"byte", 1, 0},
                                         {"tib", 0x1p40, 0},
                                         {"gib", 0x1p30, 0},
                                         {"mib", 0x1p20, 0},
                                         {"kib", 0x1p10, 0},
                                         {"tb", 1e12, 0x1p40},
                                         {"gb", 1e9, 0x1p30},
                                         {"mb", 1e6, 0x1p20},
                                         {"kb", 1e3, 0x1p10},
                                         {"ti", 0x1p40, 0},
                                         {"gi", 0x1p30, 0},
                                         {"mi", 0x1p20, 0},
                                         {"g", 0x1p30, 1e9},
                                         {"m", 0x1p20, 1e6},
                                         {"b", 1, 0}}};

/// A message and where in it the search stands.
class Scanner {
 public:
  /// @param text in small letters
  /// @param original the same text as it was written
  Scanner(std::string_view text, std::string_view original) : text_(text), original_(original) {}

  /// The size that begins at `at`, blanks and "approximately" words skipped; nothing if there is none.
  /// @param bare a number without a unit counts as bytes
  std::optional<PrintedSize> size_at(std::size_t at, bool bare) const {
    at = skip_words(at);
    const std::size_t begin = at;
    std::string digits;
    int decimals = 0;
    bool point = false;
    for (; at < text_.size(); ++at) {
      const char c = text_[at];
      if (is_digit(c)) {
        digits += c;
        decimals += point;
      } else if (c == '.' && !point && at + 1 < text_.size() && is_digit(text_[at + 1])) {
        digits += c;
        point = true;
      } else if (!(c == ',' && !point && is_group(at + 1))) {
        break;
      }
    }
    double value = 0;
    const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (digits.empty() || failed != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
    std::size_t unit_at = at;
    while (unit_at < text_.size() && text_[unit_at] == ' ') ++unit_at;
    const Unit* unit = unit_of(unit_at);
    if (unit == nullptr && (!bare || is_longer_than_a_unit(unit_at) || goes_on(at))) return std::nullopt;
    const Unit bytes{"bytes", 1, 0};
    if (unit != nullptr) at = unit_at + unit->name.size();
    const Unit& used = unit != nullptr ? *unit : bytes;
    PrintedSize size;
    size.text = std::string(original_.substr(begin, at - begin));
    size.bytes = value * used.bytes;
    size.otherwise = value * used.otherwise;
    size.half = used.bytes == 1 ? 0 : 0.5 * std::pow(10.0, -decimals) * used.bytes;
    return size;
  }

  /// The size that ends before `at` ("13.34 GiB already allocated").
  std::optional<PrintedSize> size_before(std::size_t at) const {
    std::size_t begin = at;
    while (begin > 0 && text_[begin - 1] == ' ') --begin;
    while (begin > 0 && std::isalpha(static_cast<unsigned char>(text_[begin - 1]))) --begin;
    while (begin > 0 && text_[begin - 1] == ' ') --begin;
    while (begin > 0 && (is_digit(text_[begin - 1]) || text_[begin - 1] == '.' || text_[begin - 1] == ',')) --begin;
    return size_at(begin, false);
  }

 private:
  bool is_group(std::size_t at) const {
    return at + 3 <= text_.size() && is_digit(text_[at]) && is_digit(text_[at + 1]) && is_digit(text_[at + 2]) &&
           (at + 3 == text_.size() || !is_digit(text_[at + 3]));
  }

  std::size_t skip_words(std::size_t at) const {
    static constexpr std::array<std::string_view, 8> words = {"approximately", "about", "around",    "size", "of",
                                                              "up to",         "a",     "additional"};
    for (bool again = true; again;) {
      again = false;
      while (at < text_.size() && (text_[at] == ' ' || text_[at] == ':' || text_[at] == '=' || text_[at] == '~')) ++at;
      for (const std::string_view word : words) {
        if (text_.substr(at, word.size()) != word || text_.substr(at + word.size(), 1) != " ") continue;
        at += word.size();
        again = true;
      }
    }
    return at;
  }

  /// "1e400", "12,94": what was read so far is a part of a number that is written otherwise.
  bool goes_on(std::size_t at) const {
    if (at >= text_.size()) return false;
    const bool separated = (text_[at] == ',' || text_[at] == '.') && at + 1 < text_.size() && is_digit(text_[at + 1]);
    return separated || std::isalnum(static_cast<unsigned char>(text_[at]));
  }

  /// "GiBlah": no unit, but no word of the sentence either.
  bool is_longer_than_a_unit(std::size_t at) const {
    return std::any_of(units.begin(), units.end(), [&](const Unit& unit) {
      return unit.name.size() > 1 && text_.substr(at, unit.name.size()) == unit.name;
    });
  }

  const Unit* unit_of(std::size_t at) const {
    for (const Unit& unit : units) {
      if (text_.substr(at, unit.name.size()) != unit.name) continue;
      const std::size_t end = at + unit.name.size();
      if (end >= text_.size() || !std::isalnum(static_cast<unsigned char>(text_[end]))) return &unit;
    }
    return nullptr;
  }

  std::string_view text_, original_;
};

/// Words before the size that was asked for, the surest first.
constexpr std::array<std::string_view, 14> requests = {
    "tried to allocate",      "trying to allocate", "attempted to allocate",
    "attempting to allocate", "unable to allocate", "failed to allocate",
    "cannot allocate",        "can't allocate",     "could not allocate",
    "requested to allocate",  "to allocate",        "requested",
    "allocation of",          "allocating"};

struct Part {
  std::string_view words;
  std::optional<PrintedSize> OomMessage::*part;
  bool after;  ///< the size follows the words, else it precedes them
};
constexpr std::array<Part, 18> parts = {{
    {"total capacity of", &OomMessage::capacity, true},
    {"total capacty of", &OomMessage::capacity, true},
    {"total capacity", &OomMessage::capacity, false},
    {"device limit", &OomMessage::capacity, true},
    {"max allowed:", &OomMessage::capacity, true},
    {"is allocated by pytorch", &OomMessage::allocated, false},
    {"already allocated", &OomMessage::allocated, false},
    {"currently allocated", &OomMessage::allocated, true},
    {"mps allocated:", &OomMessage::allocated, true},
    {"is reserved by pytorch but unallocated", &OomMessage::reserved_unused, false},
    {"reserved in total by pytorch", &OomMessage::reserved, false},
    {"cached)", &OomMessage::reserved, false},
    {"of which", &OomMessage::free, true},
    {"free (according to", &OomMessage::free, true},
    {"free;", &OomMessage::free, false},
    {"is free", &OomMessage::free, false},
    {"memory allocated:", &OomMessage::allocated, true},
    {"memory reserved:", &OomMessage::reserved, true},
}};

struct HintWord {
  std::string_view word;
  Hint hint;
};
constexpr std::array<HintWord, 73> hint_words = {{
    {"lm_head", Hint::head},
    {"embed_out", Hint::head},
    {"cross_entropy", Hint::logits},
    {"logits", Hint::logits},
    {"log_softmax", Hint::logits},
    {"crossentropyloss", Hint::logits},
    {"forcausallmloss", Hint::logits},
    {"attn_weights", Hint::attention},
    {"eager_attention", Hint::attention},
    {"attention_scores", Hint::attention},
    {"softmax(attn", Hint::attention},
    {"baddbmm", Hint::attention},
    {"scaled_dot_product", Hint::heads},
    {"repeat_kv", Hint::heads},
    {"rotary", Hint::heads},
    {"rotate_half", Hint::heads},
    {"causal_mask", Hint::mask},
    {"attention_mask", Hint::mask},
    {"eager_mask", Hint::mask},
    {"exp_avg", Hint::optimizer},
    {"initialize_optimizer_states", Hint::optimizer},
    {"optimizer.step", Hint::optimizer},
    {"_init_group", Hint::optimizer},
    {"fp32_partition", Hint::optimizer},
    {"single_partition_of_fp32", Hint::optimizer},
    {"fp32_groups", Hint::optimizer},
    {"master_weight", Hint::optimizer},
    {"adamw.py", Hint::optimizer},
    {"unscale_and_clip", Hint::optimizer},
    {"sub_group", Hint::optimizer},
    {"weights_partition", Hint::optimizer},
    {"flatten_dense_tensors", Hint::flatten},
    {"_flatten_dense", Hint::flatten},
    {"flatten_copy", Hint::flatten},
    {"flat_param", Hint::flatten},
    {"all_gather", Hint::gather},
    {"allgather", Hint::gather},
    {"fetch_sub_module", Hint::gather},
    {"unshard", Hint::gather},
    {"reduce_scatter", Hint::reduce},
    {"ipg_buc", Hint::reduce},
    {"average_tensor", Hint::reduce},
    {"allreduce_bucket", Hint::reduce},
    {"foreach_reduce", Hint::reduce},
    {"experts", Hint::experts},
    {"moe_layer", Hint::experts},
    {"sharded_moe", Hint::experts},
    {"grouped_mm", Hint::experts},
    {"grouped_linear", Hint::experts},
    {"gate_up_proj", Hint::experts},
    {"gate_proj", Hint::mlp},
    {"up_proj", Hint::mlp},
    {"down_proj", Hint::mlp},
    {"q_proj", Hint::projection},
    {"k_proj", Hint::projection},
    {"v_proj", Hint::projection},
    {"o_proj", Hint::projection},
    {"qkv_proj", Hint::projection},
    {"query_key_value", Hint::projection},
    {"c_attn", Hint::projection},
    {"wqkv", Hint::projection},
    {"rmsnorm", Hint::norm},
    {"rms_norm", Hint::norm},
    {"layernorm", Hint::norm},
    {"layer_norm", Hint::norm},
    {"embed_tokens", Hint::embedding},
    {"embedding(", Hint::embedding},
    {"_engine_run_backward", Hint::backward},
    {"run_backward", Hint::backward},
    {"state_dict", Hint::state_dict},
    {"safetensors", Hint::loading},
    {"load_state_dict", Hint::loading},
    {"from_pretrained", Hint::loading},
}};

/// A message tells of the device or of the host.
bool tells_of_host(std::string_view text) {
  static constexpr std::array<std::string_view, 5> words = {"defaultcpuallocator", "alloc_cpu", "unable to allocate",
                                                            "cudahostalloc", "arraymemoryerror"};
  return std::any_of(words.begin(), words.end(),
                     [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

/// Other allocators print what was asked for itself, and not the segment that they would take for it.
bool prints_segments(std::string_view text) {
  static constexpr std::array<std::string_view, 4> words = {"resource_exhausted", "mps backend", "paddle", "cupy"};
  return std::none_of(words.begin(), words.end(),
                      [&](std::string_view word) { return text.find(word) != std::string_view::npos; });
}

/// Every hint, and the one that ends last before the size; of two that end together the longer word is the surer.
/// @param size where in the text the size stands
void take_hints(std::string_view text, std::size_t size, OomMessage& message) {
  std::pair<std::size_t, std::size_t> last = {0, 0};
  for (const HintWord& word : hint_words) {
    if (text.find(word.word) == std::string_view::npos) continue;
    if (!message.has(word.hint)) message.hints.push_back(word.hint);
    const std::size_t at = text.rfind(word.word, size);
    if (at == std::string_view::npos) continue;
    const std::pair<std::size_t, std::size_t> end = {at + word.word.size(), word.word.size()};
    if (end <= last) continue;
    last = end;
    message.innermost = word.hint;
  }
}

std::optional<PrintedSize> find_request(std::string_view text, std::string_view original) {
  const Scanner scanner(text, original);
  for (const std::string_view words : requests) {
    for (std::size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) {
      // "can't allocate memory: you tried to allocate 1024 bytes" has the size after the later words.
      if (auto size = scanner.size_at(at + words.size(), true); size && size->bytes > 0) return size;
    }
  }
  // A size alone.
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return std::nullopt;
  auto size = scanner.size_at(first, true);
  if (!size || text.find_first_not_of(" \t\r\n", first + size->text.size()) != std::string_view::npos)
    return std::nullopt;
  return size;
}

}  // namespace

bool OomMessage::has(Hint hint) const { return std::find(hints.begin(), hints.end(), hint) != hints.end(); }

Result<OomMessage> read_oom_message(const std::shared_ptr<const SourceFile>& file) {
  const std::string text = lowered(file->text);
  const auto fail = [&](const char* code, std::string message, std::string help) {
    return make_error(code, std::move(message), std::move(help),
                      place_in(file, 0, std::min(file->text.size(), file->text.find('\n'))));
  };
  const auto request = find_request(text, file->text);
  if (!request) {
    return fail("oom.none", "no size that was asked for is in this text",
                R"("CUDA out of memory. Tried to allocate 12.94 GiB ...", or "12.94 GiB" alone)");
  }
  if (!(request->bytes >= 1)) return fail("oom.small", fmt::format("{} is no allocation", request->text), {});
  if (!(request->bytes < 0x1p60)) return fail("oom.large", fmt::format("{} is beyond any memory", request->text), {});
  OomMessage message;
  message.requested = *request;
  const Scanner scanner(text, file->text);
  for (const Part& part : parts) {
    if (message.*part.part) continue;
    const std::size_t at = text.find(part.words);
    if (at == std::string::npos) continue;
    message.*part.part = part.after ? scanner.size_at(at + part.words.size(), false) : scanner.size_before(at);
  }
  message.on_host = tells_of_host(text);
  message.whole_segments = !message.on_host && prints_segments(text) && request->bytes >= mebi;
  take_hints(text, text.find(lowered(request->text)), message);
  return message;
}

}  // namespace plimsoll
