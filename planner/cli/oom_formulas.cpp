// The table of tensors (planner/cli/oom_formulas.hpp).
#include "planner/cli/oom_formulas.hpp"

#include <fmt/format.h>

namespace plimsoll {
namespace {

using K = TensorKind;
using L = Letter;

constexpr const char* shard_more = "shard over more ranks (gpus), or offload.optimizer=cpu";
constexpr const char* flat_less = "zero.stage=3: no flat copy of all weights is made";
constexpr const char* sub_group_less = "a smaller zero.sub_group_size, or optimizer.implementation=fused";
constexpr const char* masks_less =
    "half the micro_batch: a quarter of it; DeepSpeed 0.19.4 or later keeps no such masks";
constexpr const char* logits_less = "loss={\"chunked\": 1024}, or half the micro_batch: it halves too";
constexpr const char* attention_less = "attention=sdpa: no matrix of scores is kept";
constexpr const char* batch_less = "half the micro_batch (it halves too), or recompute=full";
constexpr const char* bucket_less = "a smaller zero.reduce_bucket_size";
constexpr const char* gather_less =
    "lower zero.stage3_max_live_parameters and zero.stage3_prefetch_bucket_size, so that less is gathered beside it";
constexpr const char* experts_less =
    "expert_parallel: each rank gathers its own experts alone; or fewer parameters alive beside them";
constexpr const char* local_less = "a larger expert_parallel, or offload.optimizer=cpu";

}  // namespace

const std::vector<OomFormula>& oom_formulas() {  // NOLINT(readability-function-size): a table
  // clang-format off
  static const std::vector<OomFormula> formulas = {
      // States
      {"FP32 optimizer shard (moment or master copy)", 4, {L::P}, {L::N}, K::shard, 0.2, Hint::optimizer, shard_more},
      {"flattened 16-bit weights", 2, {L::P}, {}, K::flat, 0.1, Hint::flatten, flat_less},
      {"16-bit shard of the weights or gradients", 2, {L::P}, {L::N}, K::shard, 0.5, Hint::flatten, shard_more},
      {"FP32 gradients of the shard, or a temporary of the optimizer's step", 4, {L::P}, {L::N}, K::shard, 0.4,
       Hint::optimizer, sub_group_less},
      {"float64 copy of the shard's gradients for their norm", 8, {L::P}, {L::N}, K::shard, 0.8, Hint::optimizer,
       "gradient_clipping=0, or shard over more ranks"},
      {"FP32 copy of all weights (master, moment or gradients, unsharded)", 4, {L::P}, {}, K::whole, 0.5,
       Hint::optimizer, "zero.stage=1 or higher: the states are sharded"},
      {"FP32 sub-group of the optimizer (gradient or master)", 4, {L::U}, {}, K::bucket, 0.6, Hint::optimizer,
       sub_group_less},
      {"16-bit sub-group of the weights", 2, {L::U}, {}, K::bucket, 0.7, Hint::flatten, sub_group_less},
      // Buckets
      {"16-bit reduction bucket", 2, {L::B}, {}, K::bucket, 0.4, Hint::reduce, bucket_less},
      {"FP32 reduction bucket", 4, {L::B}, {}, K::bucket, 0.7, Hint::reduce, bucket_less},
      {"16-bit all-gather bucket", 2, {L::G}, {}, K::bucket, 0.6, Hint::gather, "a smaller zero.allgather_bucket_size"},
      {"prefetched parameters, coalesced", 2, {L::Q}, {}, K::gathered, 0.7, Hint::gather, gather_less},
      // Embedding and head
      {"gathered embedding or output head", 2, {L::V, L::h}, {}, K::gathered, 0.1, Hint::embedding,
       "stage 3 and fsdp2 gather it whole: fewer other weights alive beside it, or a smaller micro_batch"},
      {"16-bit gradient of the embedding or output head", 2, {L::V, L::h}, {}, K::whole, 0.3, Hint::reduce, shard_more},
      {"FP32 embedding or output head (its gradient, master copy or moment)", 4, {L::V, L::h}, {}, K::whole, 0.4,
       Hint::embedding, shard_more},
      {"embedding and output head, gathered together", 4, {L::V, L::h}, {}, K::gathered, 0.5, Hint::gather,
       "wrap them as groups of their own"},
      {"FP32 shard of the embedding or output head", 4, {L::V, L::h}, {L::N}, K::shard, 0.9, Hint::embedding, shard_more},
      // Loss
      {"FP32 logits (or their softmax, or its gradient)", 4, {L::T, L::V}, {}, K::logits, 0.0, Hint::logits, logits_less},
      {"16-bit logits (or their gradient)", 2, {L::T, L::V}, {}, K::logits, 0.3, Hint::head, logits_less},
      // Attention
      {"FP32 attention scores of one layer", 4, {L::b, L::A, L::S, L::S}, {}, K::attention, 0.2, Hint::attention,
       attention_less},
      {"16-bit attention scores of one layer", 2, {L::b, L::A, L::S, L::S}, {}, K::attention, 0.3, Hint::attention,
       attention_less},
      {"attention mask, 16-bit", 2, {L::b, L::S, L::S}, {}, K::attention, 0.8, Hint::mask, attention_less},
      {"attention mask, FP32", 4, {L::b, L::S, L::S}, {}, K::attention, 0.9, Hint::mask, attention_less},
      // Experts
      {"one layer's fused gate+up expert tensor, gathered", 4, {L::E, L::F, L::h}, {}, K::gathered, 0.1, Hint::experts,
       experts_less},
      {"one layer's down expert tensor, gathered", 2, {L::E, L::F, L::h}, {}, K::gathered, 0.3, Hint::experts,
       experts_less},
      {"all expert weights of one layer, gathered", 6, {L::E, L::F, L::h}, {}, K::gathered, 0.3, Hint::experts,
       experts_less},
      {"FP32 gradient or copy of one layer's fused gate+up expert tensor", 8, {L::E, L::F, L::h}, {}, K::whole, 0.6,
       Hint::experts, experts_less},
      {"FP32 gradient or copy of one layer's down expert tensor", 4, {L::E, L::F, L::h}, {}, K::whole, 0.7,
       Hint::experts, experts_less},
      {"one layer's local fused gate+up expert tensor", 4, {L::El, L::F, L::h}, {}, K::gathered, 0.4, Hint::experts,
       local_less},
      {"one layer's local down expert tensor", 2, {L::El, L::F, L::h}, {}, K::gathered, 0.6, Hint::experts, local_less},
      {"all local expert weights, second copy", 6, {L::El, L::Lm, L::F, L::h}, {}, K::flat, 0.2, Hint::experts,
       local_less},
      {"FP32 master copy or moment of all local experts", 12, {L::El, L::Lm, L::F, L::h}, {}, K::whole, 0.4,
       Hint::optimizer, local_less},
      {"weights of one expert", 6, {L::F, L::h}, {}, K::gathered, 0.9, Hint::experts, gather_less},
      {"routed rows of one MoE layer", 2, {L::T, L::k, L::h}, {}, K::activation, 0.4, Hint::experts, batch_less},
      {"routed rows of one MoE layer, FP32", 4, {L::T, L::k, L::h}, {}, K::activation, 0.7, Hint::experts, batch_less},
      {"gate or up output of one MoE layer's experts", 2, {L::T, L::k, L::F}, {}, K::activation, 0.4, Hint::experts,
       batch_less},
      {"fused gate+up output of one MoE layer's experts", 4, {L::T, L::k, L::F}, {}, K::activation, 0.4, Hint::experts,
       batch_less},
      // E C = k T slots at a capacity factor of 1; DeepSpeed before 0.19.4 keeps masks of tokens x experts x capacity.
      {"FP32 combine weights of a native MoE layer (tokens x experts x capacity)", 4, {L::T, L::T, L::k}, {},
       K::activation, 0.5, Hint::experts, masks_less},
      {"16-bit dispatch mask of a native MoE layer (tokens x experts x capacity)", 2, {L::T, L::T, L::k}, {},
       K::activation, 0.6, Hint::experts, masks_less},
      // Layers
      {"one MLP weight in 16 bit, gathered or autocast's copy", 2, {L::h, L::I}, {}, K::gathered, 0.6, Hint::mlp, gather_less},
      {"FP32 MLP weight (gradient, master copy or moment)", 4, {L::h, L::I}, {}, K::whole, 0.8, Hint::mlp, shard_more},
      {"query or output projection in 16 bit, gathered or autocast's copy", 2, {L::h, L::q}, {}, K::gathered, 0.7, Hint::projection, gather_less},
      {"FP32 query or output projection (gradient, master copy, moment or a clone)", 4, {L::h, L::q}, {}, K::whole, 0.8,
       Hint::projection, shard_more},
      {"key or value projection in 16 bit, gathered or autocast's copy", 2, {L::h, L::kv}, {}, K::gathered, 0.8, Hint::projection, gather_less},
      {"FP32 key or value projection (gradient, master copy, moment or a clone)", 4, {L::h, L::kv}, {}, K::whole, 0.9,
       Hint::projection, shard_more},
      {"fused query, key and value projection in 16 bit, gathered or autocast's copy", 2, {L::h, L::J}, {}, K::gathered, 0.8, Hint::projection,
       gather_less},
      {"FP32 fused query, key and value projection (gradient, master copy, moment or a clone)", 4, {L::h, L::J}, {},
       K::whole, 0.9, Hint::projection, shard_more},
      {"queries, keys and values of one layer, fused", 2, {L::T, L::J}, {}, K::activation, 0.9, Hint::projection,
       batch_less},
      {"one decoder layer, gathered", 2, {L::W}, {}, K::gathered, 0.5, Hint::gather, gather_less},
      {"one decoder layer's FP32 weights or gradients", 4, {L::W}, {}, K::gathered, 0.6, Hint::reduce, gather_less},
      {"MLP activation of one layer", 2, {L::T, L::I}, {}, K::activation, 0.4, Hint::mlp, batch_less},
      {"MLP activation of one layer, FP32", 4, {L::T, L::I}, {}, K::activation, 0.7, Hint::mlp, batch_less},
      {"hidden states", 2, {L::T, L::h}, {}, K::activation, 0.6, Hint::mlp, batch_less},
      {"hidden states, FP32", 4, {L::T, L::h}, {}, K::activation, 0.7, Hint::norm, batch_less},
      {"queries of one layer", 2, {L::T, L::q}, {}, K::activation, 0.9, Hint::heads, batch_less},
  };
  // clang-format on
  return formulas;
}

std::string letters_of(const OomFormula& formula) {
  std::string text = fmt::format("{:g}", formula.coefficient);
  for (const Letter letter : formula.over) text += fmt::format("*{}", name_of(letter));
  for (const Letter letter : formula.under) text += fmt::format("/{}", name_of(letter));
  return text;
}

}  // namespace plimsoll
