#!/usr/bin/env python3
"""How well is a node of N GPUs predicted?  Measures it, stage by stage, and sets the predictions beside it.

    python3 runtime/node/measure.py 8 calibrate  -o x8     kernels, copies, collectives of every group shape; their fit
    python3 runtime/node/measure.py 8 frameworks -o x8 --tools DIR     steps of FSDP2 and DeepSpeed
    python3 runtime/node/measure.py 8 reference  -o x8     steps of plimsoll-run: ZeRO-3 alone beside expert parallelism
    python3 runtime/node/measure.py 8 report     -o x8     no GPU: errors beside those of two GPUs, as Markdown

Each stage ends within --limit seconds, writes what it has as it goes, goes on where it was when it is started again, and
records a case that fails or hangs as failed.  README.md here says what each needs and leaves.
"""

import argparse
import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import cases
import report
import table

ROOT = Path(__file__).resolve().parents[2]
CASE_SECONDS = 90  # after which a case counts as hung; measure_all.py has the same
MOST_SHOWN = 200  # characters of an error


def say(text):
    print(text, file=sys.stderr, flush=True)


def program(name, folders):
    """A program of this project: in --bin, in a build of the source tree, or on PATH."""
    places = [Path(folder) / name for folder in folders]
    places += [ROOT / build / part / name for build in ("build-cuda", "build") for part in ("planner", "calibrate", "runtime")]
    for place in places:
        if place.is_file():
            return str(place)
    found = shutil.which(name)
    if not found:
        sys.exit(f"measure.py: no {name}: build it (./dev build cuda), or name its folder by --bin")
    return found


def environment(libraries):
    """NVLink multicast stays off: a program that dies with it can take the host's GPUs out of service.

    CUDA's libraries may come with PyTorch's wheels; the project's programs find them there."""
    env = dict(os.environ, NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    for key, value in (("TOKENIZERS_PARALLELISM", "false"), ("OMP_NUM_THREADS", "4"), ("DS_ACCELERATOR", "cuda")):
        env.setdefault(key, value)
    spec = importlib.util.find_spec("nvidia")
    wheels = [lib for folder in (spec.submodule_search_locations if spec else []) for lib in glob.glob(f"{folder}/*/lib")]
    places = [*libraries, *sorted(wheels), env.get("LD_LIBRARY_PATH", "")]
    # The frameworks bring their own libraries: only the project's programs get these.
    return env, dict(env, LD_LIBRARY_PATH=":".join(place for place in places if place))


def stop(process):
    """The process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def run_within(commands, seconds, log):
    """Runs commands side by side, output to the file log, messages to log.err: a program's last words are not lost among the
    lines that it had buffered.  [(command, environment)] -> exit codes; None: killed by the clock."""
    end = time.monotonic() + seconds
    with open(log, "ab") as out, open(f"{log}.err", "ab") as err:
        processes = [subprocess.Popen(command, env=env, stdout=out, stderr=err, start_new_session=True)
                     for command, env in commands]
        codes = []
        for process in processes:
            try:
                codes.append(process.wait(max(0.1, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        for process in processes:
            stop(process)
    return codes


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def last_line(*paths):
    """Of the first file that has any."""
    for path in paths:
        lines = Path(path).read_text(errors="replace").split("\n") if Path(path).exists() else []
        if said := next((line.strip() for line in reversed(lines) if line.strip()), ""):
            return said
    return ""


class Records:
    """JSON lines of cases, each written at once; what a killed run left torn is cut off."""

    def __init__(self, path):
        self.path = Path(path)
        if self.path.exists():
            whole = self.path.read_bytes()
            keep = whole[:whole.rfind(b"\n") + 1]
            if keep != whole:
                self.path.write_bytes(keep)

    def add(self, line):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def left(self, wanted, again):
        """Those of the wanted cases that have no record; again: nor a success."""
        done = {line["case"]["id"] for line in (table.read_lines(self.path) if self.path.exists() else [])
                if "case" in line and not (again and "error" in line["result"])}
        return [case for case in wanted if case["id"] not in done]


def wanted(all_cases, only):
    return [case for case in all_cases if not only or any(text in case["id"] for text in only)]


def calibrate(options, env):
    """Samples to NxDEVICE.jsonl, their fit to NxDEVICE.json; a rank a process, as torchrun names them."""
    tool, gpus, out = program("plimsoll-calibrate", options.bin), options.gpus, options.output
    name = f"{gpus}x{options.device}"
    samples = out / f"{name}.jsonl"
    bench = [tool, "bench", "-o", str(samples), "--budget", f"{max(10, options.limit - 60)}s", "--timeout", "60s"]
    bench += ["--resume"] if samples.exists() else []
    bench += [word for text in options.only for word in ("--only", text)]
    port = free_port()
    commands = [(bench, dict(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(gpus), LOCAL_WORLD_SIZE=str(gpus),
                             MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PLIMSOLL_PORT=str(port)))
                for rank in range(gpus)]
    log = out / "calibrate.log"
    codes = run_within(commands, options.limit - 30, log)
    say(f"bench ended with {codes}: {last_line(f'{log}.err', log)}")
    if not samples.exists():
        return 3
    left = re.findall(r"(\d+) left", Path(f"{log}.err").read_text())
    # One GPU's points that the time did not suffice for come from the samples of a node of one.
    one = ROOT / "docs" / "samples" / f"{options.device}.jsonl.gz"
    fit = [tool, "fit", str(samples), *([str(one)] if one.exists() else []), "--base", options.device, "--name", name,
           "-o", str(out / f"{name}.json")]
    fitted = run_within([(fit, env)], 25, out / "fit.log")
    say(f"fit ended with {fitted}: {out / 'fit.log'} has the errors of points held out")
    return 0 if codes == [0] * gpus and fitted == [0] and left[-1:] == ["0"] else 3


def frameworks(options, env):
    """Cases by the measuring scripts to frameworks.jsonl: a fresh process a rank and a case."""
    script = Path(options.tools or "") / "measure_all.py"
    if not options.tools or not script.is_file():
        sys.exit("measure.py: stage frameworks needs --tools DIR, the folder of measure_all.py and measure_steps.py")
    out = options.output
    records = Records(out / "frameworks.jsonl")
    left = records.left(wanted(cases.framework_cases(options.gpus), options.only), options.again)
    say(f"frameworks: {len(left)} cases left")
    if not left:
        return 0
    by_id = {case["id"]: case for case in left}
    todo = out / "frameworks-cases.json"
    todo.write_text(json.dumps(left))
    end = time.monotonic() + options.limit - 10
    begin_for = max(1, options.limit - CASE_SECONDS - 20)  # the last case begun may take its whole time
    process = subprocess.Popen(
        [sys.executable, "-u", str(script), str(records.path), str(todo), str(options.gpus)], text=True,
        env=dict(env, GT_SECONDS=str(begin_for)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    signal.signal(signal.SIGALRM, lambda *_: stop(process))
    signal.alarm(int(max(1, end - time.monotonic())))
    for line in process.stdout:
        say(line.rstrip()[:MOST_SHOWN])
        ended = re.match(r"(\S+) ([0-9.]+)s\b", line)
        # A case that was killed, or died before its first line, leaves nothing in the file.
        if ended and ended[1] in by_id and records.left([by_id[ended[1]]], False):
            records.add({"case": by_id[ended[1]], "result": {
                "error": f"no result after {ended[2]} s: {last_line(out / 'frameworks.log')[:MOST_SHOWN]}"}})
    signal.alarm(0)
    stop(process)
    return 0 if not records.left(left, False) else 3


def memory_watch(path):
    """nvidia-smi writing GPU 0's used memory ten times a second; None where there is none."""
    with open(path, "wb") as file:
        try:
            return subprocess.Popen(["nvidia-smi", "-i", "0", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                                     "-lms", "100"], stdout=file, stderr=subprocess.DEVNULL, start_new_session=True)
        except FileNotFoundError:
            return None


def run_result(log, memory, steps):
    """What plimsoll-run's log says, as a table's `measured`; steps 3 to the last but one: first ones choose algorithms.  And what
    the routers of a mixture chose in the step nearest the median."""
    lines = list(table.read_lines(log)) if Path(log).exists() else []
    if len(lines) < steps + 1:
        return None
    timed = lines[3:-1]
    times = [line["step_time_s"] for line in timed]
    median = statistics.median(times)
    measured = {"reserved_peak_bytes": lines[0]["arena_bytes"],
                "step_time_s": {"median": median, "min": min(times), "max": max(times)}}
    used = [int(word) for word in Path(memory).read_text().split() if word.isdigit()] if Path(memory).exists() else []
    if used:
        measured["device_peak_bytes"] = max(used) << 20
    routed = min(timed, key=lambda line: abs(line["step_time_s"] - median)).get("expert_tokens")
    return {"measured": measured, **({"expert_tokens": routed} if routed else {})}


def reference(options, env):
    """Cases of plimsoll-run to reference.jsonl; logs, plans and models beside it in reference/, for `compare --run-log`."""
    tool, out = program("plimsoll-run", options.bin), options.output
    folder = out / "reference"
    folder.mkdir(exist_ok=True)
    records = Records(out / "reference.jsonl")
    left = records.left(wanted(cases.reference_cases(options.gpus), options.only), options.again)
    say(f"reference: {len(left)} cases left")
    end = time.monotonic() + options.limit - 5
    for case in left:
        seconds = min(CASE_SECONDS, end - time.monotonic() - 5)
        if seconds < 30:
            say(f"out of time before {case['id']}")
            return 3
        base = folder / case["id"]
        model, plan, log, memory, text = (Path(f"{base}.{ending}") for ending in
                                          ("model.json", "plan.json", "jsonl", "mem", "txt"))
        model.write_text(json.dumps(cases.model_config(case["arch"], case["dims"])))
        plan.write_text(json.dumps(case["plan"]))
        for old in (log, text, Path(f"{text}.err")):
            old.unlink(missing_ok=True)
        watch = memory_watch(memory)
        start = time.monotonic()
        codes = run_within([([tool, "--backend", "cuda", "--model", str(model), "--cluster",
                              f"{options.gpus}x{options.device}", "--plan", str(plan), "--steps", str(case["steps"]),
                              "--timeout", "30", "--log", str(log)], env)], seconds, text)
        if watch:
            stop(watch)
        result = run_result(log, memory, case["steps"]) if codes == [0] else None
        words = last_line(f"{text}.err", text)[:MOST_SHOWN]
        result = result or {"error": f"ended with {codes[0]}: {words}"}
        records.add({"case": case, "result": {**result, "wall": round(time.monotonic() - start, 1)}})
        say(f"{case['id']} {time.monotonic() - start:.1f} s: "
            f"{result.get('error') or '%.4f s a step' % result['measured']['step_time_s']['median']}")
    return 0


def write_report(options, _):
    """The table of what was measured, measured.json, and report.md over it."""
    out = options.output
    source = options.source or f"Measured by runtime/node/measure.py on {options.gpus} {options.device} of one node."
    records = [path for path in (out / "frameworks.jsonl", out / "reference.jsonl") if path.exists()]
    rows, failed = table.rows_of(records, options.device)
    tables = [str(out / "measured.json")] if rows else []
    if rows:
        table.write_table(rows, source, tables[0])
    fitted = out / f"{options.gpus}x{options.device}.json"
    text = report.markdown(program("plimsoll", options.bin), options.gpus, options.device, tables, out / "reference",
                           str(fitted) if fitted.exists() else None, failed)
    (out / "report.md").write_text(text)
    say(f"{out / 'report.md'} written")
    return 0 if rows else 1


STAGES = {"calibrate": calibrate, "frameworks": frameworks, "reference": reference, "report": write_report}


def main():
    parser = argparse.ArgumentParser(
        description="Measures a node of N GPUs, and sets the predictions beside it.",
        epilog="Exit codes: 0 every case has a record, failed ones too; 1 nothing to report; 3 some are left.")
    parser.add_argument("gpus", type=int)
    parser.add_argument("stages", nargs="+", choices=STAGES, metavar="STAGE", help=", ".join(STAGES))
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--tools", help="folder of measure_all.py and measure_steps.py (stage frameworks)")
    parser.add_argument("--bin", action="append", default=[], help="folder of the project's programs")
    parser.add_argument("--libraries", action="append", default=[], help="folder of shared libraries that they need")
    parser.add_argument("--device", default="h200", help="its name in cluster presets (default h200)")
    parser.add_argument("--limit", type=int, default=540, help="seconds in which each stage ends (default 540)")
    parser.add_argument("--only", action="append", default=[], help="only cases whose id holds this text; repeatable")
    parser.add_argument("--again", action="store_true", help="cases that failed are run again")
    parser.add_argument("--source", help="when and where it was measured, for the tables")
    options = parser.parse_args()
    if options.gpus < 2:
        parser.error("a node of several GPUs is measured: at least 2")
    options.output.mkdir(parents=True, exist_ok=True)
    plain, ours = environment(options.libraries)
    code = 0
    for stage in options.stages:
        code = STAGES[stage](options, plain if stage == "frameworks" else ours) or code
    return code


if __name__ == "__main__":
    sys.exit(main())
