#!/usr/bin/env python3
"""Which training steps are measured on one node of N GPUs?

    python3 runtime/node/cases.py 8              cases of the frameworks, as the measuring scripts take them (CASES.json)
    python3 runtime/node/cases.py 8 --reference  cases of plimsoll-run

Models: two mixtures small enough for one GPU and one dense 7B, whose steps on two GPUs lie in tests/data/measured; the same
micro-batches, so that only the groups grow.  A case's id is that of its row there, then -xN.  ep: 1, 2, 4, ... as far as it
divides N and the experts.  The first cases are those that a short time must not miss.
"""

import argparse
import json

MIXTRAL_S = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8,
    "intermediate_size": 3584, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "output_router_logits": True}
QWEN3MOE_S = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
    "intermediate_size": 3072, "moe_intermediate_size": 512, "num_experts": 64, "num_experts_per_tok": 8,
    "vocab_size": 151936, "max_position_embeddings": 8192, "tie_word_embeddings": False, "norm_topk_prob": True,
    "output_router_logits": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
LLAMA_7B = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 8192, "tie_word_embeddings": False}

# deepspeed.moe's layer takes the place of a dense MLP: Llama's layers around experts of the mixture's number and width.
NATIVE_MIXTRAL_S = {k: v for k, v in MIXTRAL_S.items()
                    if k not in ("num_local_experts", "num_experts_per_tok", "output_router_logits")}
NATIVE_QWEN3MOE_S = {**NATIVE_MIXTRAL_S, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 151936}

ARCHITECTURES = {"llama": "LlamaForCausalLM", "mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
MIXTURES = {"mixtral": ("mixtral", MIXTRAL_S), "qwen3moe": ("qwen3_moe", QWEN3MOE_S)}
BLOCKS = {"mixtral": "MixtralSparseMoeBlock", "qwen3moe": "Qwen3MoeSparseMoeBlock"}


def model_config(arch, dims):
    """The Hugging Face config.json of a case."""
    return {"architectures": [ARCHITECTURES[arch]], "model_type": arch, **dims}


def expert_parallel_sizes(gpus):
    """2, 4, 8, ... that divide the GPUs; eight experts are the fewest of the models, so none is beyond them."""
    return [ep for ep in (2, 4, 8) if ep <= gpus and gpus % ep == 0]


def framework_cases(gpus, steps=8):
    """CASES.json of N GPUs.  AutoEP with ep > 1 records its routing, which decides its memory."""
    cases = []

    def add(name, fw, arch, dims, mb, seq=2048, **rest):
        cases.append({"id": f"{name}-x{gpus}", "fw": fw, "arch": arch, "dims": dims, "mb": mb, "seq": seq, "steps": steps,
                      **rest})

    def autoep(stage, ep, name):
        arch, dims = MIXTURES[name]
        section = {"enabled": True, "autoep_size": ep, "preset_model": arch}
        routing = {"routing": True} if ep > 1 else {}
        add(f"ds-autoep-z{stage}-ep{ep}-{name}-mb4", "ds", arch, dims, 4, zero=stage,
            ds_extra={"expert_parallel": section}, **routing)

    for name in MIXTURES:
        for ep in [1] + expert_parallel_sizes(gpus):
            autoep(3, ep, name)
    for ep in expert_parallel_sizes(gpus):
        add(f"ds-native-z2-ep{ep}-mixtral-mb4", "ds", "llama", NATIVE_MIXTRAL_S, 4, zero=2,
            native={"num_experts": 8, "k": 2, "ep": ep})
        add(f"ds-native-z2-ep{ep}-qwen3moe-mb1", "ds", "llama", NATIVE_QWEN3MOE_S, 1, zero=2,
            native={"num_experts": 64, "k": 8, "ep": ep})
    add("fsdp2-mixtral-s-mb8-s2048", "fsdp2", "mixtral", MIXTRAL_S, 8)
    add("fsdp2-qwen3moe-s-mb4-s2048", "fsdp2", "qwen3_moe", QWEN3MOE_S, 4)
    add("fsdp2-llama7b-mb2-s4096", "fsdp2", "llama", LLAMA_7B, 2, 4096)
    for stage in (3, 2, 1):
        for name, (arch, dims) in MIXTURES.items():
            leaf = {"leaf": [BLOCKS[name]]} if stage == 3 else {}
            add(f"ds-z{stage}-{name}{'-leaf' if stage == 3 else ''}-mb4", "ds", arch, dims, 4, zero=stage, **leaf)
        add(f"ds-z{stage}-llama7b-mb1-s4096", "ds", "llama", LLAMA_7B, 1, 4096, zero=stage)
    for ep in expert_parallel_sizes(gpus):
        autoep(2, ep, "mixtral")
    return cases


def reference_cases(gpus, steps=15):
    """Cases of plimsoll-run: ZeRO-3 alone beside ep at stages 3 and 1.  A capacity factor of ep holds any routing."""
    cases = []

    def add(name, arch, dims, mb, seq, stage, ep=1, steps=steps):
        plan = {"engine": "plimsoll", "world_size": gpus, "micro_batch": mb, "sequence": seq, "zero": {"stage": stage}}
        if ep > 1:
            plan.update({"expert_parallel": ep, "moe": {"capacity_factor": ep}})
        split = f"-ep{ep}" if ep > 1 else ""
        cases.append({"id": f"run-z{stage}{split}-{name}-mb{mb}-x{gpus}", "fw": "plimsoll", "arch": arch, "dims": dims,
                      "plan": plan, "steps": steps})

    for name, (arch, dims), mb in (("qwen3moes", MIXTURES["qwen3moe"], 4), ("mixtrals", MIXTURES["mixtral"], 8)):
        add(name, arch, dims, mb, 2048, 3)
        for ep in expert_parallel_sizes(gpus):
            for stage in (3, 1):
                add(name, arch, dims, mb, 2048, stage, ep)
    add("llama7b", "llama", LLAMA_7B, 2, 4096, 3, steps=10)
    return cases


def main():
    parser = argparse.ArgumentParser(description="The training steps that are measured on one node.")
    parser.add_argument("gpus", type=int)
    parser.add_argument("--reference", action="store_true", help="those of plimsoll-run, not of the frameworks")
    options = parser.parse_args()
    print(json.dumps((reference_cases if options.reference else framework_cases)(options.gpus), indent=1))


if __name__ == "__main__":
    main()
