"""Measures training steps under plain PyTorch on one GPU: what tests/data/measured/h200_single.json holds.

usage: python3 measure_torch.py FOLDER [SECONDS]     (one GPU; PyTorch and transformers)

Each case runs in a process of its own, forked after the imports, and adds a row {"id", "model", "plan", "measured"} to
FOLDER/rows.jsonl, in the form that `plimsoll validate` reads; a case with "profile" also leaves a profiler trace of one
steady step, FOLDER/ID.json.gz.  No case starts after SECONDS.
Phases: model and optimizer built; forward, backward and optimizer of the first step and of a steady one (the fifth), by
the allocator's own counters, reset in between.  step_time_s: ten more steps, each waited for.
"""
import contextlib
import json
import os
import sys
import time

os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # is_available() must not start CUDA in the parent
import torch
import transformers
from transformers import LlamaForCausalLM, MixtralForCausalLM, Qwen3MoeForCausalLM  # noqa: F401 (before the forks)


def llama(**other):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
            "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
            "max_position_embeddings": 8192, "tie_word_embeddings": True, **other}


ODD = llama(hidden_size=1536, num_hidden_layers=10, num_attention_heads=12, num_key_value_heads=4,
            intermediate_size=4096, vocab_size=50257, tie_word_embeddings=False)
WIDE = llama(hidden_size=4096, num_key_value_heads=32, intermediate_size=11008, vocab_size=32000,
             tie_word_embeddings=False)
HEADS_96 = llama(hidden_size=2304, num_hidden_layers=8, num_attention_heads=24, num_key_value_heads=24,
                 intermediate_size=6144, vocab_size=32001)
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 1024,
           "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 8, "intermediate_size": 3584,
           "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": 8192,
           "tie_word_embeddings": False, "output_router_logits": True}
QWEN = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 1024,
        "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64,
        "intermediate_size": 3072, "moe_intermediate_size": 512, "num_experts": 64, "num_experts_per_tok": 8,
        "vocab_size": 151936, "max_position_embeddings": 8192, "tie_word_embeddings": False, "norm_topk_prob": True,
        "output_router_logits": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def plan(micro_batch, sequence=2048, autocast=False, **other):
    return {"engine": "ddp", "world_size": 1, "micro_batch": micro_batch, "sequence": sequence,
            "gradient_accumulation": 1, "precision": "bf16_autocast" if autocast else "bf16", "attention": "sdpa",
            "recompute": "none", "gradient_clipping": 0.0,
            "optimizer": {"type": "adamw", "implementation": other.pop("adam", "fused"),
                          "moments": "fp32" if autocast else "bf16"},
            **({} if autocast else {"master_weights": "none"}), **other}


GROUPED = {"moe": {"implementation": "grouped"}, "routing": {"kind": "balanced"}}
CASES = [  # id, model, plan, profile
    ("amp-llama1b-mb2-eager", llama(), plan(2, autocast=True, attention="eager"), True),
    ("amp-llama1b-mb4-foreach-clip", llama(), plan(4, autocast=True, adam="foreach", gradient_clipping=1.0), True),
    ("bf16-llama1b-v8k-mb8", llama(vocab_size=8192), plan(8), True),
    ("bf16-llama1b-mb8", llama(), plan(8), True),
    ("bf16-mixtral-mb8", MIXTRAL, plan(8, **GROUPED), True),
    ("bf16-qwen3moe-mb4", QWEN, plan(4, **GROUPED), True),
    ("amp-llama1b-mb2-gas4-clip", llama(),
     plan(2, autocast=True, gradient_accumulation=4, gradient_clipping=1.0), False),
    ("amp-llama1b-mb4-ckpt-expandable", llama(),
     plan(4, autocast=True, recompute="full", expandable_segments=True), False),
    ("bf16-odd-mb3-s1536", ODD, plan(3, 1536), False),
    ("amp-llama1b-mb1-again", llama(), plan(1, autocast=True), False),
    ("bf16-odd-mb2-eager-foreach-clip", ODD, plan(2, attention="eager", adam="foreach", gradient_clipping=1.0), False),
    ("amp-qwen3moe-mb2-eager-ckpt", QWEN,
     plan(2, autocast=True, attention="eager", recompute="full", **GROUPED), False),
    ("bf16-7b16l-mb2-s4096", WIDE, plan(2, 4096), True),
    ("bf16-llama1b-mb8-again", llama(), plan(8), False),
    ("bf16-llama1b-v8k-mb8-again", llama(vocab_size=8192), plan(8), False),
    ("bf16-qwen3moe-mb8-ckpt", QWEN, plan(8, recompute="full", **GROUPED), True),
    ("bf16-mixtral-mb4-gas3-foreach", MIXTRAL,
     plan(4, gradient_accumulation=3, adam="foreach", gradient_clipping=1.0, **GROUPED), False),
    ("amp-mha96-mb4", HEADS_96, plan(4, autocast=True), True),
    ("bf16-mha96-mb4-ckpt-expandable", HEADS_96, plan(4, recompute="full", expandable_segments=True), False),
    ("amp-mixtral-mb2-eager", MIXTRAL, plan(2, autocast=True, attention="eager", **GROUPED), False),
    ("amp-llama1b-mb4-again", llama(), plan(4, autocast=True), False),
    ("bf16-qwen3moe-mb2-s4096", QWEN, plan(2, 4096, **GROUPED), False),
    ("amp-v8k-mb8", llama(vocab_size=8192), plan(8, autocast=True), False),
]


def measure(folder, name, model_config, plan, profile):
    cuda = torch.cuda
    free, total = cuda.mem_get_info()
    before = total - free
    torch.manual_seed(0)
    family = model_config["architectures"][0].removesuffix("ForCausalLM")
    config = getattr(transformers, family + "Config")(
        **{k: v for k, v in model_config.items() if k not in ("architectures", "model_type")})
    config._attn_implementation = plan["attention"]
    config.use_cache = False
    phases = {}

    def mark(phase):
        cuda.synchronize()
        phases[phase] = {"allocated_bytes_at_end": cuda.memory_allocated(),
                         "allocated_peak_bytes": cuda.max_memory_allocated(),
                         "reserved_bytes_at_end": cuda.memory_reserved()}
        cuda.reset_peak_memory_stats()

    with torch.device("cuda"):
        model = getattr(transformers, family + "ForCausalLM")(config)
    autocast = plan["precision"] == "bf16_autocast"
    if not autocast:
        model = model.to(torch.bfloat16)
    if plan["recompute"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    fused = plan["optimizer"]["implementation"] == "fused"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused, foreach=not fused)
    mark("initialized")
    micro_batches = plan["gradient_accumulation"]

    def step(phase=None):
        for _ in range(micro_batches):
            ids = torch.randint(0, config.vocab_size, (plan["micro_batch"], plan["sequence"]), device="cuda")
            with torch.autocast("cuda", dtype=torch.bfloat16) if autocast else contextlib.nullcontext():
                loss = model(input_ids=ids, labels=ids).loss
            if phase:
                mark(phase + "_forward")
            (loss / micro_batches).backward()
            if phase:
                mark(phase + "_backward")
        if plan["gradient_clipping"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), plan["gradient_clipping"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if phase:
            mark(phase + "_step")

    step("first_step")
    step()
    step()
    if profile:
        from torch.profiler import ProfilerActivity, profile as record
        with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as trace:
            step()
            cuda.synchronize()
        trace.export_chrome_trace(os.path.join(folder, name + ".json.gz"))
        del trace
    cuda.synchronize()
    cuda.reset_peak_memory_stats()
    step("steady")
    times = []
    for _ in range(10):
        cuda.synchronize()
        start = time.perf_counter()
        step()
        cuda.synchronize()
        times.append(time.perf_counter() - start)
    times.sort()
    free, total = cuda.mem_get_info()
    row = {"id": name, "cluster": "1xh200", "model": model_config, "plan": plan, "process": "fresh",
           "parameters": sum(p.numel() for p in model.parameters()),
           "measured": {"allocated_peak_bytes": cuda.max_memory_allocated(),
                        "reserved_peak_bytes": cuda.max_memory_reserved(), "device_peak_bytes": total - free,
                        "device_bytes_before": before,
                        "step_time_s": {"median": times[5], "min": times[0], "max": times[-1]}, "phases": phases}}
    with open(os.path.join(folder, "rows.jsonl"), "a") as file:
        file.write(json.dumps(row) + "\n")
    print(name, "%.1f ms" % (times[5] * 1e3), row["measured"]["allocated_peak_bytes"], flush=True)


def main(folder, seconds):
    start = time.time()
    for name, model, plan, profile in CASES:
        if time.time() - start > seconds:
            print("no time for", name)
            continue
        child = os.fork()
        if child == 0:
            try:
                if plan.get("expandable_segments"):
                    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
                measure(folder, name, model, plan, profile)
            except BaseException as error:  # one case's failure is told, and the next is measured
                print(name, repr(error)[:300], flush=True)
            os._exit(0)
        begun = time.time()
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            if time.time() - begun > 40:
                os.kill(child, 9)
            time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1e9)
