"""How fast is the same model under PyTorch's FSDP2?  The baseline beside plimsoll-run, in the same session on the same GPUs.

    torchrun --nproc-per-node 2 -- runtime/baseline_fsdp2.py --model config.json --micro-batch 8 --sequence 2048
    torchrun --nproc-per-node 2 -- runtime/baseline_fsdp2.py --model config.json --micro-batch 8 --sequence 2048 --compile

Model: transformers' own class of the config.json, bf16 compute over fp32 shards; each decoder layer and the root are sharded by
fully_shard and gathered again in backward; gradients are reduced in fp32; fused AdamW of fp32 moments.  Tokens: synthetic, as
plimsoll-run's.  A step's time is the wall time between two device synchronisations, on the slowest rank; the figure is the
median of the steps after --warm-up.  tokens/s is of one GPU.

The log has plimsoll-run's form (a head, a line a step) without a digest: no step program stands behind it.
"""

import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def parse():
    parser = argparse.ArgumentParser(description="Training steps of a model under FSDP2: tokens/s of one GPU.")
    parser.add_argument("--model", required=True, help="a Hugging Face config.json")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--gradient-accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm-up", type=int, default=6, help="steps that do not count")
    parser.add_argument("--compile", action="store_true", help="torch.compile each decoder layer and the head")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing of every layer")
    parser.add_argument("--attention", default="sdpa", choices=["sdpa", "eager"])
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=1.0, help="norm of the gradients; 0: not clipped")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", help="JSON lines, one a step")
    options = parser.parse_args()
    if options.warm_up >= options.steps:
        parser.error("--warm-up leaves no step to measure: give more --steps")
    return options


class Step(torch.nn.Module):
    """Tokens to the mean loss.  The head is a function of its own, so that it can be compiled with the loss."""

    def __init__(self, model, compile_head):
        super().__init__()
        self.model = model
        self.head = torch.compile(head) if compile_head else head

    def forward(self, ids, labels):
        return self.head(self.model.lm_head, self.model.model(input_ids=ids).last_hidden_state, labels)


def build(options, device):
    """The sharded step; weights are made on the device, each rank its own shards."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with open(options.model, encoding="utf-8") as file:
        config = AutoConfig.for_model(**json.load(file))
    config._attn_implementation = options.attention
    config.use_cache = False
    torch.manual_seed(options.seed)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if options.recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    step = Step(model, options.compile)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        if options.compile:
            layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(step, mp_policy=policy)
    step.to_empty(device=device)
    with torch.no_grad():
        for parameter in step.parameters():
            local = parameter.to_local()
            local.fill_(1.0) if parameter.dim() == 1 else local.normal_(0, getattr(config, "initializer_range", 0.02))
    restore_buffers(model, config, device)
    return step.train(), config


def restore_buffers(model, config, device):
    """What to_empty left without values: rotary frequencies are buffers, a function of the config."""
    for module in model.modules():
        if not hasattr(module, "inv_freq"):
            continue
        fresh = type(module)(config=config).to(device)
        module.inv_freq = fresh.inv_freq


def head(lm_head, hidden, labels):
    logits = lm_head(hidden).float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def run(options):
    on_device = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", 0))
    device = torch.device("cuda", local) if on_device else torch.device("cpu")
    if on_device:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_device else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, config = build(options, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(1000 * options.seed + rank)
    shape = (options.micro_batch, options.sequence + 1)
    log = open(options.log, "w") if options.log and rank == 0 else None
    tokens = options.micro_batch * options.sequence * options.gradient_accumulation

    def write(line):
        if log:
            print(json.dumps(line), file=log, flush=True)

    write({"backend": "fsdp2" + ("+compile" if options.compile else ""), "torch": torch.__version__, "world_size": world,
           "tokens_per_step_per_rank": tokens})
    times = []
    for step in range(1, options.steps + 1):
        if on_device:
            torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        total = 0.0
        for micro_batch in range(options.gradient_accumulation):
            ids = torch.randint(config.vocab_size, shape, generator=generator).to(device, non_blocking=True)
            model.set_requires_gradient_sync(micro_batch + 1 == options.gradient_accumulation)
            loss = model(ids[:, :-1], ids[:, 1:]) / options.gradient_accumulation
            loss.backward()
            total = total + loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip) if options.clip > 0 else None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if on_device:
            torch.cuda.synchronize()
        took = torch.tensor([time.perf_counter() - start], device=device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        dist.all_reduce(total, op=dist.ReduceOp.AVG if on_device else dist.ReduceOp.SUM)
        loss = total.item() / (1 if on_device else world)
        line = {"step": step, "loss": loss, "step_time_s": took.item(), "tokens_per_s_per_rank": tokens / took.item()}
        if norm is not None:
            line["gradient_norm"] = (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).item()
        if on_device:
            line["allocated_bytes"] = torch.cuda.max_memory_allocated()
            line["reserved_bytes"] = torch.cuda.max_memory_reserved()
        write(line)
        if rank == 0:
            print(f"step {step:4d}  loss {loss:.4f}  {took.item():.4f} s  {tokens / took.item():,.0f} tokens/s", flush=True)
        if step > options.warm_up:
            times.append(took.item())
    if rank == 0:
        median = statistics.median(times)
        print(f"median of steps {options.warm_up + 1} to {options.steps}: {median:.4f} s, {tokens / median:,.0f} tokens/s a GPU")
    dist.destroy_process_group()


if __name__ == "__main__":
    run(parse())
