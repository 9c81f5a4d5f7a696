// How are the parts of an answer called, in terminals and JSON alike?
#pragma once

#include <string>
#include <vector>

#include "planner/base/diagnostic.hpp"
#include "planner/cli/evaluate.hpp"
#include "planner/cli/terminal.hpp"

namespace plimsoll {

const char* name_of(Severity severity);

/// Green, yellow or red.
Colour colour_of(Verdict verdict);

/// "mixtral-8x7b on 8 x h100, deepspeed ZeRO-3, autoep experts, ep 8, micro-batch 1 x 4096 tokens, bf16"
std::string scenario_in_words(const Scenario& scenario);

/// The allocation at which a steady step's peak is reached: "loss.fp32 logits, layer 31".
std::string peak_op_in_words(const Evaluation& evaluation);

/// What a reader should know about how this scenario shards: over which ranks the experts' states are (not) spread.
std::vector<std::string> notes_on(const Scenario& scenario);

/// Of the model as it trains: with native MoE those of the experts that replace its MLPs.
ParameterCounts parameters_of(const Scenario& scenario);

/// Always in GiB, for columns that compare: "12.34".
std::string gibibytes(Bytes bytes);

/// "17.3 %" of the whole; "" where there is no whole.
std::string share_in_words(Bytes part, Bytes whole);

/// "115.60 of 139.80 GiB"; "2.75 GiB of 1.00 MiB" where the two are not of one kind.
std::string of_in_words(Bytes part, Bytes whole);

/// "It lacks 25.1 GiB on the GPU and 658 GiB on the node; it breaks in steady_forward: logits in fp32"; "" if it fits, or only
/// tightly.
std::string lack_in_words(const Ledger& ledger);

/// "115.60 of 139.80 GiB on the device, margin 24.20 GiB (17.3 %)"
std::string room_in_words(const Ledger& ledger);

/// "The device's memory is short in steady_forward: logits in fp32"; "" where it fits.
std::string break_in_words(const Ledger& ledger);

/// "3 errors, 1 warning"; "" if there is neither.
std::string count_in_words(const Diagnostics& diagnostics);

/// In one line the first error that says what helps, else the first; "" if there is none.
std::string refusal_in_words(const Diagnostics& diagnostics);

}  // namespace plimsoll
