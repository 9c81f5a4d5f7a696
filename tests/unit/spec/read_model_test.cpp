// Is a config.json read as transformers reads it, and is what is wrong in it said where it stands?
#include "planner/spec/read_model.hpp"

#include <gmock/gmock.h>

#include "planner/base/machine_error.hpp"
#include "tests/unit/spec/source.hpp"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Result<ModelSpec> read(const std::string& text) {
  const auto document = parse_document(source(text, "config.json"), Syntax::json);
  if (!document) return document.diagnostics();
  return read_model(*document, "test");
}

std::string errors(const std::string& text) { return format(read(text).diagnostics()); }

std::vector<std::string> names(const ModelSpec& model) {
  std::vector<std::string> all;
  for (const ParameterDecl& parameter : model.parameters) all.push_back(parameter.name);
  return all;
}

const std::string small = R"("hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100)";

TEST(ReadModel, ListsLlamasParametersInTheOrderOfConstruction) {
  const auto model =
      read(R"({"model_type": "llama", "intermediate_size": 128, "num_key_value_heads": 2, )" + small + "}");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_THAT(names(*model),
              ElementsAre("model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                          "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight",
                          "model.layers.0.self_attn.o_proj.weight", "model.layers.0.mlp.gate_proj.weight",
                          "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
                          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
                          "model.norm.weight", "lm_head.weight"));
  EXPECT_THAT(model->parameters[2].shape, ElementsAre(32, 64));
  EXPECT_EQ(model->parameters[2].layer, 0);
  EXPECT_EQ(model->parameters.back().role, Role::head);
  EXPECT_EQ(model->places.at("kv_heads").pointer, "/num_key_value_heads");
}

TEST(ReadModel, FusesExpertsAndPutsTheRouterWhereTheFamilyDoes) {
  const std::string experts = R"("intermediate_size": 128, "moe_intermediate_size": 32, "num_experts_per_tok": 2, )";
  const auto mixtral = read(R"({"model_type": "mixtral", "num_local_experts": 4, )" + experts + small + "}");
  ASSERT_TRUE(mixtral) << format(mixtral.diagnostics());
  EXPECT_EQ(mixtral->parameters[5].name, "model.layers.0.mlp.gate.weight");
  EXPECT_THAT(mixtral->parameters[6].shape, ElementsAre(4, 256, 64));
  EXPECT_THAT(mixtral->parameters[7].shape, ElementsAre(4, 64, 128));
  EXPECT_TRUE(mixtral->parameters[6].expert);
  EXPECT_FALSE(mixtral->parameters[5].expert);
  EXPECT_TRUE(mixtral->layers[0].moe->scores_fp32);
  const auto qwen = read(R"({"model_type": "qwen3_moe", "num_experts": 4, "head_dim": 32, )" + experts + small + "}");
  ASSERT_TRUE(qwen) << format(qwen.diagnostics());
  EXPECT_EQ(qwen->parameters[7].name, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_EQ(qwen->parameters[9].name, "model.layers.0.mlp.gate.weight");
  EXPECT_FALSE(qwen->layers[0].moe->scores_fp32);
  const auto oss = read(R"({"model_type": "gpt_oss", "num_local_experts": 4, )" + experts + small + "}");
  ASSERT_TRUE(oss) << format(oss.diagnostics());
  EXPECT_EQ(oss->parameters[1].name, "model.layers.0.self_attn.sinks");
  EXPECT_EQ(oss->parameters[3].name, "model.layers.0.self_attn.q_proj.bias");
}

TEST(ReadModel, TakesTheNamesOfTransformersFourAndFive) {
  const auto four = read(R"({"model_type": "qwen3", "intermediate_size": 128, "torch_dtype": "bfloat16",
    "rope_theta": 1e6, "rope_scaling": null, "num_key_value_heads": null, )" +
                         small + "}");
  const auto five = read(R"({"model_type": "qwen3", "intermediate_size": 128, "dtype": "bfloat16",
    "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, )" +
                         small + "}");
  ASSERT_TRUE(four && five);
  EXPECT_EQ(four->layers, five->layers);
  EXPECT_EQ(four->layers[0].attention.kv_heads, 4);
  EXPECT_EQ(four->layers[0].attention.qk_norm, AttentionSpec::QkNorm::per_head);
}

TEST(ReadModel, FollowsThePatternOfDenseAndExpertLayers) {
  const std::string base =
      R"("hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128,
         "moe_intermediate_size": 32, "num_experts_per_tok": 2, )";
  const auto pattern = [](const Result<ModelSpec>& model) {
    EXPECT_TRUE(model) << format(model.diagnostics());
    std::string text;
    for (const LayerSpec& layer : model->layers) text += layer.moe ? 'e' : 'd';
    return text;
  };
  EXPECT_EQ(pattern(read("{" + base + R"("model_type": "qwen3_moe", "num_experts": 4, "decoder_sparse_step": 2,
                         "mlp_only_layers": [3]})")),
            "deddde");
  EXPECT_EQ(pattern(read("{" + base + R"("model_type": "glm4_moe", "n_routed_experts": 4, "n_shared_experts": null,
                         "first_k_dense_replace": 2, "moe_layer_freq": 3})")),
            "dddedd");
  EXPECT_EQ(
      pattern(read("{" + base + R"("model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 256,
                         "interleave_moe_layer_step": 2})")),
      "dedede");
  EXPECT_EQ(pattern(read("{" + base + R"("model_type": "qwen3_moe", "num_experts": 0})")), "dddddd");
}

TEST(ReadModel, TakesThePatternThatTransformersFiveLists) {
  const std::string base =
      R"({"model_type": "glm_moe_dsa", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "vocab_size": 100, "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 16, "index_n_heads": 2, "index_head_dim": 8, )";
  const auto model = read(base + R"("mlp_layer_types": ["dense", "sparse", "dense"]})");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_FALSE(model->layers[0].moe);
  EXPECT_TRUE(model->layers[1].moe);
  EXPECT_FALSE(model->layers[2].moe);
  EXPECT_THAT(errors(base + R"("mlp_layer_types": ["dense"]})"), HasSubstr("error[model.length]: /mlp_layer_types"));
}

TEST(ReadModel, TakesThePartOfAHeadThatTurnsFromWhereverItIsStated) {
  const std::string base =
      R"({"model_type": "glm4_moe", "intermediate_size": 128, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
    "n_routed_experts": 4, "n_shared_experts": 1, )" +
      small;
  const auto turned = [&](const std::string& more) {
    const auto model = read(base + more + "}");
    EXPECT_TRUE(model) << format(model.diagnostics());
    return model->layers[0].attention.rotary_dim;
  };
  EXPECT_EQ(turned(R"(, "partial_rotary_factor": 0.25)"), 4);
  EXPECT_EQ(turned(R"(, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25})"), 4);
  EXPECT_EQ(turned(""), 8);  // the class's default is half a head
}

TEST(ReadModel, SaysThatPredictionLayersAreNotCounted) {
  const auto model =
      read(R"({"model_type": "llama", "intermediate_size": 128, "num_nextn_predict_layers": 1, )" + small + "}");
  ASSERT_TRUE(model);
  EXPECT_THAT(model->assumptions, ElementsAre(HasSubstr("multi-token-prediction layers of the checkpoint (1)")));
}

TEST(ReadModel, ReadsOnePerLayerWhereAFamilyListsThem) {
  const std::string base =
      R"({"model_type": "hunyuan", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 100, "intermediate_size": 128, "num_shared_expert": [1, 2], "moe_intermediate_size": [32, 48], )";
  const auto model = read(base + R"("num_experts": [4, 8], "moe_topk": "list of 2, all 2"})");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_EQ(model->layers[1].moe->experts, 8);
  EXPECT_EQ(model->layers[1].moe->expert_intermediate, 48);
  EXPECT_EQ(model->layers[1].moe->shared_intermediate, 256);
  EXPECT_EQ(model->layers[0].moe->top_k, 2);
  EXPECT_THAT(errors(base + R"("num_experts": [4], "moe_topk": 2})"),
              HasSubstr("error[model.length]: /num_experts has 1 entries, must have one for each of the 2 layers"));
}

TEST(ReadModel, ReadsTheTextPartOfAModelOfSeveralMedia) {
  const auto model = read(R"({"model_type": "llama4", "tie_word_embeddings": true, "vision_config": {}, "text_config": {
    "model_type": "llama4_text", "intermediate_size": 32, "intermediate_size_mlp": 128, "num_local_experts": 4,
    "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, )" +
                          small + "}}");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_TRUE(model->tied_embeddings);
  EXPECT_EQ(model->layers[0].moe->shared_intermediate, 32);
  EXPECT_THAT(model->assumptions, ElementsAre(HasSubstr("only text_config is read")));
}

TEST(ReadModel, ReadsAnUnknownFamilyAsLlamaAndSaysSo) {
  const auto model = read(R"({"model_type": "lama", "intermediate_size": 128, )" + small + "}");
  ASSERT_TRUE(model);
  EXPECT_EQ(format(model.diagnostics()),
            "config.json:1:16: warning[model.family]: the family lama is not known; the model is read as one with "
            "Llama's layers\n"
            "    1 | {\"model_type\": \"lama\", \"intermediate_size\": 128, \"hidden_size\": 64, "
            "\"num_hidden_layers\": 1, \"nu…\n"
            "      |                ^~~~~~\n"
            "help: did you mean llama?\n");
  EXPECT_THAT(model->assumptions, Not(IsEmpty()));
  EXPECT_TRUE(model->tied_embeddings);
}

TEST(ReadModel, ReadsTheExpertsOfAnUnknownFamily) {
  const auto model =
      read(R"({"model_type": "new_moe", "intermediate_size": 128, "num_experts": 4, "moe_intermediate_size": 32,
    "num_experts_per_tok": 2, "first_k_dense_replace": 0, "tie_word_embeddings": false, )" +
           small + "}");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_EQ(model->layers[0].moe->expert_intermediate, 32);
  EXPECT_THAT(format(model.diagnostics()), HasSubstr("warning[model.family]"));
}

TEST(ReadModel, RefusesExpertsOfAnUnknownFamilyThatItWouldLeaveOut) {
  EXPECT_THAT(
      errors(R"({"model_type": "new_moe", "intermediate_size": 128, "moe_num_specialists": 64, "moe_choose": 6, )" +
             small + "}"),
      HasSubstr("error[model.experts]: experts of a family that is not known, under keys that are not read: "
                "/moe_num_specialists, /moe_choose"));
  EXPECT_THAT(errors(R"({"model_type": "new_moe", "intermediate_size": 128, "num_experts": 4, "num_experts_per_tok": 2,
                         "expert_layer_period": 2, "router_aux_loss_coef": 0.1, )" +
                     small + "}"),
              HasSubstr("not read: /expert_layer_period\n"));
  EXPECT_THAT(errors(R"({"model_type": "t9", "is_encoder_decoder": true, "intermediate_size": 128, )" + small + "}"),
              HasSubstr("error[model.unsupported]: /is_encoder_decoder is true"));
}

TEST(ReadModel, TellsWhatItDoesNotReadOfAnUnknownFamily) {
  const auto model = read(R"({"model_type": "hybrid", "intermediate_size": 128, "mamba_d_state": 16, "bos_token_id": 1,
    "layer_types": ["linear_attention"], "max_window_layers": 28, "use_cache": true, )" +
                          small + "}");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_THAT(format(model.diagnostics()), HasSubstr("Llama's layers; not read: /mamba_d_state, /layer_types\n"));
  EXPECT_THAT(model->assumptions, testing::Contains(HasSubstr("/mamba_d_state")));
}

TEST(ReadModel, ReadsASharedExpertAndStepsOfAnUnknownFamily) {
  const auto model = read(R"({"model_type": "new_moe", "intermediate_size": 128, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
    "decoder_sparse_step": 2, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100})");
  ASSERT_TRUE(model) << format(model.diagnostics());
  EXPECT_FALSE(model->layers[0].moe);
  EXPECT_EQ(model->layers[1].moe->shared_intermediate, 48);
  EXPECT_TRUE(model->layers[1].moe->shared_gate);
}

TEST(ReadModel, NamesEverythingThatIsMissing) {
  EXPECT_EQ(
      errors("{\n  \"model_type\": \"mixtral\",\n  \"hiden_size\": 64,\n  \"num_hidden_layers\": 2\n}"),
      "config.json:1:1: error[model.missing]: the config does not state hidden_size, num_attention_heads, vocab_size, "
      "num_local_experts, num_experts_per_tok, intermediate_size\n"
      "    1 | {\n"
      "      | ^\n"
      "help: is hiden_size meant to be hidden_size? state it as \"hidden_size\": …; if only sizes are known, use "
      "--model "
      "sketch:dense=7B,hidden=4096,layers=32\n");
}

TEST(ReadModel, PointsAtDimensionsThatContradictEachOther) {
  EXPECT_EQ(
      errors("{\"model_type\": \"llama\", \"hidden_size\": 100, \"num_hidden_layers\": 1, \"vocab_size\": 9,\n"
             " \"num_attention_heads\": 8,\n \"num_key_value_heads\": 3, \"intermediate_size\": 8}"),
      "config.json:2:25: error[model.heads]: /num_attention_heads is 8, which does not divide the hidden size, 100\n"
      "    2 |  \"num_attention_heads\": 8,\n"
      "      |                         ^\n"
      "help: state head_dim if a head is not as wide as hidden_size / num_attention_heads\n"
      "config.json:3:25: error[model.heads]: /num_key_value_heads is 3, which does not divide the 8 attention heads\n"
      "    3 |  \"num_key_value_heads\": 3, \"intermediate_size\": 8}\n"
      "      |                         ^\n");
  EXPECT_EQ(errors("{\"model_type\": \"mixtral\", \"intermediate_size\": 8, " + small +
                   ",\n \"num_local_experts\": 4,\n \"num_experts_per_tok\": 5}"),
            "config.json:3:25: error[model.top_k]: /num_experts_per_tok asks for 5 experts per token of only 4\n"
            "    3 |  \"num_experts_per_tok\": 5}\n"
            "      |                         ^\n"
            "config.json:2:23: note: /num_local_experts is here\n");
  EXPECT_THAT(
      errors("{\"model_type\": \"gpt_oss\", \"intermediate_size\": 8, \"num_local_experts\": 4, "
             "\"num_experts_per_tok\": 2, \"experts_per_token\": 3, " +
             small + "}"),
      HasSubstr("error[model.contradiction]: /experts_per_token is 3, but /num_experts_per_tok, which means the "
                "same, is 2"));
}

TEST(ReadModel, BoundsEverySizeAndTheirSum) {
  EXPECT_THAT(errors(R"({"model_type": "llama", "intermediate_size": 4611686018427387904, )" + small + "}"),
              HasSubstr("/intermediate_size is 4611686018427387904, must be from 1 to 1,048,576"));
  EXPECT_THAT(errors(R"({"model_type": "mixtral", "intermediate_size": 1048576, "num_local_experts": 65536,
    "num_experts_per_tok": 1, "hidden_size": 1048576, "num_hidden_layers": 16384, "num_attention_heads": 64,
    "vocab_size": 16777216})"),
              HasSubstr("error[model.range]: the model has more than 1,125,899,906,842,624 parameters"));
  EXPECT_THAT(errors(R"({"model_type": "llama", "intermediate_size": "128", )" + small + "}"),
              HasSubstr("/intermediate_size is a string, must be a whole number from 1 to 1,048,576"));
  EXPECT_THAT(errors("[1]"), HasSubstr("the document is an array, must be an object"));
}

TEST(LoadModel, NamesTheNearestPreset) {
  const auto model = load_model("mixtral-8x7");
  ASSERT_FALSE(model);
  EXPECT_THAT(format(model.diagnostics()), HasSubstr("did you mean mixtral-8x7b?"));
  EXPECT_THROW(load_model("no/such/file.json"), MachineError);
  EXPECT_THROW(load_model("missing.json"), MachineError);
}

}  // namespace
}  // namespace plimsoll
