#!/usr/bin/env python3
"""Measured cases to a table that `plimsoll validate` reads: what plan, in the planner's words, was each case?

    python3 runtime/node/table.py frameworks.jsonl reference.jsonl -o measured.json

Input: JSON lines {"case": ..., "result": ...} as the measuring scripts of the frameworks write them, and as measure.py writes
those of plimsoll-run; other lines (their head) and cases that failed are left out, the latter by name on standard error.
Of a case that stands there twice the last success counts.  Rows have the form of tests/data/measured (README.md there).
"""

import argparse
import json
import sys

from cases import model_config

ENGINES = {"ds": "deepspeed", "fsdp2": "fsdp2", "amp": "ddp", "bf16": "ddp", "plimsoll": "plimsoll"}
# Where the run does not say: those that the measuring scripts were written for.
VERSIONS = {"deepspeed": "0.19.8", "fsdp2": "2.11", "ddp": "2.11"}
EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
PHASES = {"model": "model_built", "init": "initialized", "first_fwd": "first_step_forward",
          "first_bwd": "first_step_backward", "first_step": "first_step_step", "steady_fwd": "steady_forward",
          "steady_bwd": "steady_backward", "steady_step": "steady_step"}


def routing_of(per_rank):
    """Tokens that each rank's router sends, [layer][rank][expert]; each rank's record is by the layer's name, in order."""
    def counts(record):
        return record["counts"] if isinstance(record, dict) else record
    return {"kind": "histogram", "counts": [[counts(rank[name]) for rank in per_rank] for name in per_rank[0]]}


def in_proportion(counts, rows):
    """rows in the proportion of counts, rounded down; what is left goes to those that lose most by it."""
    total = sum(counts)
    parts = [rows * count // total for count in counts]
    most_lost = sorted(range(len(counts)), key=lambda i: -(rows * counts[i] % total))
    for i in most_lost[:rows - sum(parts)]:
        parts[i] += 1
    return parts


def reference_plan(case, expert_tokens):
    """The plan of a case of plimsoll-run.  Where experts are spread over ranks it states what its routers chose, as if each rank
    had sent the same share of it: steps wait for the rank with most rows."""
    plan = case["plan"]
    if plan.get("expert_parallel", 1) == 1 or not expert_tokens:
        return plan
    rows = plan["micro_batch"] * plan["sequence"] * case["dims"]["num_experts_per_tok"]
    return {**plan, "routing": {"kind": "histogram", "counts": [[in_proportion(layer, rows)] for layer in expert_tokens]}}


def experts_of(case):
    """(expert_parallel, moe) of the plan; (1, None) for a dense model."""
    if "native" in case:
        native = case["native"]
        return native.get("ep", 1), {
            "implementation": "native", "num_experts": native["num_experts"], "top_k": native.get("k", 1),
            "capacity_factor": native.get("cf", 1.0), "min_capacity": 4, "drop_tokens": native.get("drop", True),
            "use_residual": native.get("residual", False)}
    section = case.get("ds_extra", {}).get("expert_parallel")
    if section:
        return section["autoep_size"], {"implementation": "autoep"}
    if any(key in case["dims"] for key in EXPERT_KEYS):
        return 1, {"implementation": "grouped", **({"leaf": True} if case.get("leaf") else {})}
    return 1, None


def zero_of(case, plan):
    """The keys of DeepSpeed's zero_optimization; offload has keys of its own."""
    options = dict(case.get("zero_opts", {}))
    optimizer, parameters = options.pop("offload_optimizer", None), options.pop("offload_param", None)
    plan["zero"] = {"stage": case["zero"], **options}
    if optimizer:
        plan["offload"] = {"optimizer": "cpu", "parameters": "cpu" if parameters else "none",
                           "pin_memory": optimizer.get("pin_memory", False)}
        plan["optimizer"]["implementation"] = "torch_cpu"
    extra = case.get("ds_extra", {})
    if "data_types" in extra:
        plan["gradient_dtype"] = extra["data_types"]["grad_accum_dtype"]
    if "communication_data_type" in extra:
        plan["communication_dtype"] = extra["communication_data_type"]


def framework_plan(case, world, versions, routing=None):
    """The plan of a framework's case in the planner's keys.  versions: by engine, as the run's head states them."""
    fw, engine = case["fw"], ENGINES[case["fw"]]
    plan = {"engine": engine, "engine_version": versions.get(engine, VERSIONS[engine]), "world_size": world,
            "micro_batch": case["mb"], "sequence": case["seq"], "gradient_accumulation": case.get("gas", 1),
            "precision": {"ds": case.get("prec", "bf16"), "amp": "bf16_autocast"}.get(fw, "bf16"),
            "attention": case.get("attn", "sdpa"), "loss": "full", "recompute": "full" if case.get("ckpt") else "none",
            "optimizer": {"type": "adamw", "implementation": case.get("adam", "fused"),
                          "moments": "bf16" if fw == "bf16" else "fp32"},
            "gradient_clipping": case.get("clip", 1.0 if fw == "ds" else 0.0)}
    if fw == "bf16":
        plan["master_weights"] = "none"
    if fw == "fsdp2":
        plan["fsdp"] = {"reshard_after_forward": case.get("reshard", True), "reduce_dtype": case.get("reduce", "fp32")}
    if fw == "ds":
        zero_of(case, plan)
    for key, said, value in (("compile", "compile", True), ("alloc_conf", "expandable_segments", True),
                             ("build", "construction", case.get("build"))):
        if case.get(key):
            plan[said] = value
    if "lora" in case:
        lora = case["lora"]
        plan["trainable"] = {"lora": {"rank": lora["r"], "targets": lora["targets"],
                                      "dtype": "fp32" if lora.get("fp32", True) else "16bit",
                                      "dropout": lora.get("dropout", 0.0)}}
    ep, moe = experts_of(case)
    if moe:
        if "expert_parallel" in case.get("ds_extra", {}) or "native" in case:
            plan["expert_parallel"] = ep
        plan["moe"] = moe
        plan["routing"] = routing_of(routing) if routing else {"kind": "balanced"}
    return plan


def framework_measured(result):
    """Where the routing is recorded the peak is that of the step whose routing it is; the loop's other steps have their own."""
    phases = {said: {"allocated_bytes_at_end": mark["alloc"], "allocated_peak_bytes": mark["peak"],
                     "reserved_bytes_at_end": mark["reserved"]}
              for name, said in PHASES.items() if (mark := result["marks"].get(name))}
    peak, over_steps = result["peak_alloc"], {}
    if result.get("routing"):
        peak = max(phases[name]["allocated_peak_bytes"] for name in ("steady_forward", "steady_backward", "steady_step"))
        over_steps = {"allocated_peak_bytes_over_steps": result["peak_alloc"]}
    return {"allocated_peak_bytes": peak, "reserved_peak_bytes": result["peak_reserved"],
            "device_peak_bytes": result["device_used"], "device_bytes_before": result["base_used"],
            "step_time_s": {"median": result["step_median"], "min": result["step_min"], "max": result["step_max"]},
            "phases": phases, **over_steps}


def row(case, result, world, versions, device):
    """One row of the table."""
    head = {"id": case["id"], "cluster": f"{world}x{device}", "model": model_config(case["arch"], case["dims"])}
    if case["fw"] == "plimsoll":
        return {**head, "plan": reference_plan(case, result.get("expert_tokens")), "process": "fresh",
                "measured": result["measured"]}
    return {**head, "plan": framework_plan(case, world, versions, result.get("routing")), "process": "fresh",
            "parameters": result["params"], "measured": framework_measured(result)}


def versions_of(head):
    """PyTorch's as the planner names it, 2.11 of 2.11.0+cu130; DeepSpeed's whole, but a bare source tree calls itself 0.0.0."""
    torch, deepspeed = ".".join(head["torch"].split(".")[:2]), head.get("deepspeed")
    known = {} if deepspeed in (None, "0.0.0") else {"deepspeed": deepspeed}
    return {"fsdp2": torch, "ddp": torch, **known}


def read_lines(path):
    """JSON lines; the last one may be torn, where a run was killed."""
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError:
                print(f"{path}:{number}: no JSON, left out", file=sys.stderr)


def rows_of(paths, device="h200"):
    """(rows in the order of first success, failures by id) of files of measured cases."""
    rows, failed = {}, {}
    for path in paths:
        world, versions = 1, {}
        for line in read_lines(path):
            if "meta" in line:
                world, versions = line["meta"]["world"], versions_of(line["meta"])
            if "case" not in line:
                continue
            case, result = line["case"], line["result"]
            if "error" in result:
                failed[case["id"]] = result["error"]
                continue
            rows[case["id"]] = row(case, result, case.get("plan", {}).get("world_size", world), versions, device)
    return list(rows.values()), {name: error for name, error in failed.items() if name not in rows}


def write_table(rows, source, path):
    """A row a line, so that a difference between two tables shows."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"source": %s, "notes": "See README.md of this folder.", "rows": [\n' % json.dumps(source))
        file.write(",\n".join(json.dumps(row) for row in rows) + "\n]}\n")


def main():
    parser = argparse.ArgumentParser(description="Measured cases to a table that plimsoll validate reads.")
    parser.add_argument("cases", nargs="+", help="JSON lines of measured cases")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--source", default="", help="when and where this was measured")
    parser.add_argument("--device", default="h200", help="its name in cluster presets")
    options = parser.parse_args()
    rows, failed = rows_of(options.cases, options.device)
    write_table(rows, options.source, options.output)
    for name, error in failed.items():
        print(f"failed: {name}: {error[:200]}", file=sys.stderr)
    print(f"{len(rows)} rows, {len(failed)} cases failed: {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
