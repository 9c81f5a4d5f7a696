"""One steady step of a small Llama under bf16 autocast, recorded by PyTorch's allocator: what tests/data/snapshots holds.

usage: python3 measure.py FOLDER     (one GPU; PyTorch and transformers)

Writes FOLDER/llama-small-amp.snapshot.json.gz, the memory snapshot of the fourth step by the two lines that
`plimsoll compare --help` shows, and FOLDER/llama-small-amp.json: the model, the plan, and the allocator's own counters around
that step.  The loss and the input ids of a step live until its function returns.
"""
import gzip, json, os, sys

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 3,
         "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 4096, "vocab_size": 32000,
         "max_position_embeddings": 4096, "tie_word_embeddings": False}
PLAN = {"engine": "ddp", "world_size": 1, "precision": "bf16_autocast", "micro_batch": 2, "sequence": 1024}


def main(folder):
    torch.cuda.set_device(0)
    torch.manual_seed(0)
    config = LlamaConfig(**{k: v for k, v in MODEL.items() if k not in ("architectures", "model_type")})
    config._attn_implementation = "sdpa"
    config.use_cache = False
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step():
        ids = torch.randint(0, MODEL["vocab_size"], (PLAN["micro_batch"], PLAN["sequence"]), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    step()
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    counters = {"allocated_before_bytes": before, "allocated_after_bytes": torch.cuda.memory_allocated(),
                "allocated_peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_peak_bytes": torch.cuda.max_memory_reserved()}
    with gzip.open(os.path.join(folder, "llama-small-amp.snapshot.json.gz"), "wt", compresslevel=9) as file:
        json.dump(snapshot, file, separators=(",", ":"))
    with open(os.path.join(folder, "llama-small-amp.json"), "w") as file:
        json.dump({"source": "tests/data/snapshots/measure.py", "gpu": torch.cuda.get_device_name(),
                   "torch": torch.__version__, "transformers": transformers.__version__,
                   "model": MODEL, "plan": PLAN, "counters": counters}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
