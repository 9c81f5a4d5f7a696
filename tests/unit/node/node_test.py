"""Does the measuring of a node choose the right steps, say them in the planner's words, and survive what goes wrong?

The plans of its cases are held against those of the rows that were measured before; the stages run with programs made up
for the purpose, so that no GPU is needed.  PLIMSOLL_BINARY names the planner.
"""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NODE = ROOT / "runtime" / "node"
sys.path.insert(0, str(NODE))
import cases  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import table  # noqa: E402

PATIENCE_S = 600  # until a program hangs for sure: sanitized ones are slow


def measured_rows():
    """Rows of two H200 by id."""
    rows = {}
    for name in ("torch", "deepspeed", "x2", "plimsoll_run"):
        path = ROOT / "tests" / "data" / "measured" / f"h200_{name}.json"
        rows.update({report.base_name(row["id"]): row for row in json.loads(path.read_text())["rows"]
                     if row["cluster"] == "2xh200"})
    return rows


def result_like(row):
    """What the measuring scripts would have written of a row."""
    measured = row["measured"]
    marks = {name: {"alloc": measured["phases"][said]["allocated_bytes_at_end"],
                    "peak": measured["phases"][said]["allocated_peak_bytes"],
                    "reserved": measured["phases"][said]["reserved_bytes_at_end"]}
             for name, said in table.PHASES.items() if said in measured.get("phases", {})}
    step = measured["step_time_s"]
    routing = row["plan"].get("routing", {}).get("counts")
    ranks = [{f"layer {i}": counts[rank] for i, counts in enumerate(routing)} for rank in range(2)] if routing else None
    return {"params": row["parameters"], "marks": marks, "routing": ranks, "device_used": measured["device_peak_bytes"],
            "peak_alloc": measured.get("allocated_peak_bytes_over_steps", measured["allocated_peak_bytes"]),
            "peak_reserved": measured["reserved_peak_bytes"], "base_used": measured["device_bytes_before"],
            "step_median": step["median"], "step_min": step["min"], "step_max": step["max"]}


def reference_result_like(row):
    """Likewise of plimsoll-run, whose log counts the tokens of both ranks: counts in the proportion that the row states."""
    routing = row["plan"].get("routing", {}).get("counts")
    tokens = [[2 * count for count in layer[0]] for layer in routing] if routing else None
    return {"measured": row["measured"], **({"expert_tokens": tokens} if tokens else {})}


class Cases(unittest.TestCase):
    def test_have_names_of_their_own_and_ep_that_divides_the_gpus(self):
        for gpus in (2, 4, 6, 8):
            every = cases.framework_cases(gpus) + cases.reference_cases(gpus)
            names = [case["id"] for case in every]
            self.assertEqual(len(names), len(set(names)))
            for case in every:
                plan = case.get("plan") or table.framework_plan(case, gpus, {})
                self.assertEqual(gpus % plan.get("expert_parallel", 1), 0, case["id"])
        sizes = {case["plan"].get("expert_parallel", 1) for case in cases.reference_cases(8)}
        self.assertEqual(sizes, {1, 2, 4, 8})

    def test_of_two_gpus_are_the_rows_measured_before_in_model_plan_and_figures(self):
        known = measured_rows()
        for case in cases.framework_cases(2) + cases.reference_cases(2):
            name = report.base_name(case["id"])
            row = known[name]
            result = reference_result_like(row) if case["fw"] == "plimsoll" else result_like(row)
            made = table.row(case, result, 2, {}, "h200")
            self.assertEqual(comparable(made), comparable(row), name)

    def test_of_the_reference_state_the_routing_of_the_step_nearest_the_median(self):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "run.jsonl"
            lines = [{"arena_bytes": 1}] + [{"step_time_s": seconds, "expert_tokens": [[seconds * 10, 1]]}
                                            for seconds in (9, 9, 3, 1, 2, 9)]
            log.write_text("".join(json.dumps(line) + "\n" for line in lines))
            result = measure.run_result(log, Path(folder) / "none", 6)
        self.assertEqual(result["expert_tokens"], [[20, 1]])
        self.assertEqual(result["measured"]["step_time_s"], {"median": 2, "min": 1, "max": 3})
        self.assertEqual(table.in_proportion([20, 1], 10), [10, 0])
        self.assertEqual(table.in_proportion([1, 1, 1], 8), [3, 3, 2])

    def test_record_the_routing_where_it_decides_the_memory(self):
        for case in cases.framework_cases(4):
            autoep = case.get("ds_extra", {}).get("expert_parallel", {}).get("autoep_size", 1)
            self.assertEqual(case.get("routing", False), autoep > 1, case["id"])

    def test_are_all_answered_by_validate(self):
        with tempfile.TemporaryDirectory() as folder:
            for gpus in (4, 8):
                every = cases.framework_cases(gpus) + cases.reference_cases(gpus)
                rows = [{"id": case["id"], "cluster": f"{gpus}xh200", "model": cases.model_config(case["arch"], case["dims"]),
                         "plan": case.get("plan") or table.framework_plan(case, gpus, {}),
                         "measured": {"device_peak_bytes": 150109880320, "step_time_s": {"median": 1.0}}} for case in every]
                path = Path(folder) / "all.json"
                table.write_table(rows, "made up", path)
                errors = report.Errors(os.environ["PLIMSOLL_BINARY"], [path], f"{gpus}xh200")
                self.assertEqual(errors.unanswered, [])
                self.assertEqual(errors.ids(), [case["id"] for case in every])
                for name in errors.ids():  # more than the device holds would be measured as a failure only
                    self.assertLess(errors.rows[name, "device_peak"]["error"], 0, name)


def comparable(row):
    """The ds_config is what DeepSpeed got; the plan says the same in the planner's keys.  Some of the rows shared a process."""
    return {key: value for key, value in row.items() if key not in ("id", "ds_config", "process")}


MEASURE_ALL = """import json, sys
out, todo = sys.argv[1], json.load(open(sys.argv[2]))
for number, case in enumerate(todo):
    if number % 3 == 0:
        open(out, "a").write(json.dumps({"case": case, "result": {"error": "out of memory"}}) + "\\n")
    elif number % 3 == 1:
        open(out, "a").write(json.dumps({"case": case, "result": RESULT}) + "\\n")
    print(case["id"], "1.5s", "whatever")
print("out of time before", "nothing")
"""
RUN = """#!/bin/sh
while [ $# -gt 0 ]; do case $1 in --log) log=$2 ;; --steps) steps=$2 ;; --plan) plan=$2 ;; esac; shift; done
case $plan in *ep2*) echo "rank 1: too many rows" >&2; echo "buffered"; exit 3 ;; esac
echo '{"arena_bytes": 1000}' > "$log"
i=0; while [ $i -lt $steps ]; do i=$((i + 1)); echo "{\\"step_time_s\\": 0.$i}" >> "$log"; done
"""
CALIBRATE = """#!/bin/sh
[ $1 = fit ] && exec touch fitted
echo "$RANK of $WORLD_SIZE: $*" >> ranks
[ $RANK = 0 ] || exit 0
[ -f 2xh200.jsonl ] && left=0 || left=7
echo point >> 2xh200.jsonl
echo "1 points measured in 1 s, 0 there before, 0 failed, $left left" >&2
"""


class Stages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.out = Path(self.folder.name) / "out"

    def stage(self, name, *more):
        return subprocess.run([sys.executable, str(NODE / "measure.py"), "2", name, "-o", str(self.out), *more],
                              capture_output=True, text=True, timeout=PATIENCE_S)

    def lines(self, name):
        return [json.loads(line) for line in (self.out / name).read_text().splitlines()]

    def tool(self, name, text):
        path = Path(self.folder.name) / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def test_calibrate_starts_a_process_a_rank_and_says_when_points_are_left(self):
        self.tool("plimsoll-calibrate", CALIBRATE.replace("2xh200.jsonl", f"{self.out}/2xh200.jsonl")
                  .replace("ranks", f"{self.out}/ranks").replace("touch fitted", f"touch {self.out}/fitted"))
        self.assertEqual(self.stage("calibrate", "--bin", self.folder.name).returncode, 3)
        self.assertTrue((self.out / "fitted").exists())
        ranks = (self.out / "ranks").read_text().splitlines()
        self.assertEqual(sorted(line[:7] for line in ranks), ["0 of 2:", "1 of 2:"])
        self.assertNotIn("--resume", ranks[0])
        self.assertEqual(self.stage("calibrate", "--bin", self.folder.name).returncode, 0)
        self.assertIn("--resume", (self.out / "ranks").read_text().splitlines()[2])

    def test_frameworks_record_every_case_and_go_on_where_they_were(self):
        tools = Path(self.folder.name) / "tools"
        tools.mkdir()
        result = result_like(measured_rows()["ds-z2-mixtral-mb4"])
        (tools / "measure_all.py").write_text(MEASURE_ALL.replace("RESULT", repr(result)))
        some = ("--tools", str(tools), "--only", "mixtral-mb4")
        ran = self.stage("frameworks", *some)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        wanted = [case["id"] for case in cases.framework_cases(2) if "mixtral-mb4" in case["id"]]
        said = {line["case"]["id"]: line["result"].get("error", "") for line in self.lines("frameworks.jsonl")}
        self.assertEqual(sorted(said), sorted(wanted))
        self.assertEqual(len(self.lines("frameworks.jsonl")), len(wanted))
        for number, name in enumerate(wanted):
            self.assertIn(("out of memory", "", "no result after 1.5 s")[number % 3], said[name])
            self.assertEqual(not said[name], number % 3 == 1)
        with open(self.out / "frameworks.jsonl", "a") as file:
            file.write('{"case": {"id": "torn')
        self.stage("frameworks", *some)
        self.assertEqual(len(self.lines("frameworks.jsonl")), len(wanted))
        before = len(table.rows_of([self.out / "frameworks.jsonl"])[0])
        self.stage("frameworks", *some, "--again")
        self.assertEqual(len(table.rows_of([self.out / "frameworks.jsonl"])[0]), before + 1)

    def test_stages_end_in_time_and_say_what_is_left(self):
        (Path(self.folder.name) / "measure_all.py").write_text(
            "import json, sys, time\nprint(json.load(open(sys.argv[2]))[0]['id'], '1.5s', flush=True)\ntime.sleep(100)\n")
        start = time.monotonic()
        ran = self.stage("frameworks", "--tools", self.folder.name, "--limit", "12")
        self.assertLess(time.monotonic() - start, 12)
        self.assertEqual(ran.returncode, 3)
        self.assertEqual(len(self.lines("frameworks.jsonl")), 1)
        self.tool("plimsoll-run", RUN)
        ran = self.stage("reference", "--bin", self.folder.name, "--limit", "30")
        self.assertEqual(ran.returncode, 3)
        self.assertIn("out of time before run-z3-qwen3moes-mb4-x2", ran.stderr)

    def test_reference_survives_a_run_that_fails_and_keeps_its_last_words(self):
        self.tool("plimsoll-run", RUN)
        some = ("--bin", self.folder.name, "--only", "qwen3moes")
        ran = self.stage("reference", *some)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        results = {line["case"]["id"]: line["result"] for line in self.lines("reference.jsonl")}
        self.assertEqual(list(results), ["run-z3-qwen3moes-mb4-x2", "run-z3-ep2-qwen3moes-mb4-x2", "run-z1-ep2-qwen3moes-mb4-x2"])
        self.assertIn("ended with 3: rank 1: too many rows", results["run-z3-ep2-qwen3moes-mb4-x2"]["error"])
        measured = results["run-z3-qwen3moes-mb4-x2"]["measured"]
        self.assertEqual(measured["reserved_peak_bytes"], 1000)
        self.assertEqual(measured["step_time_s"]["max"], 0.9)  # steps 3 to 14 of 0.1, 0.2, ..., 0.9, 0.10, ..., 0.15
        self.assertEqual(measured["step_time_s"]["min"], 0.1)
        self.assertIn("0 cases left", self.stage("reference", *some).stderr)

    def test_the_report_sets_errors_beside_those_of_two_gpus(self):
        self.out.mkdir()
        row = measured_rows()["ds-z2-mixtral-mb4"]
        case = next(case for case in cases.framework_cases(4) if case["id"] == "ds-z2-mixtral-mb4-x4")
        with open(self.out / "frameworks.jsonl", "w") as file:
            for line in ({"meta": {"world": 4, "torch": "2.11.0+cu130", "deepspeed": "0.19.8"}},
                         {"case": case, "result": result_like(row)},
                         {"case": {**case, "id": "broken-x4"}, "result": {"error": "no | way"}}):
                file.write(json.dumps(line) + "\n")
        ran = subprocess.run([sys.executable, str(NODE / "measure.py"), "4", "report", "-o", str(self.out), "--bin",
                              str(Path(os.environ["PLIMSOLL_BINARY"]).parent)], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        text = (self.out / "report.md").read_text()
        line = next(line for line in text.splitlines() if line.startswith("| ds-z2-mixtral-mb4-x4 |"))
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        self.assertEqual(len(cells), 13)
        self.assertEqual(cells[3], "-0.00 %")  # on two GPUs, allocated
        self.assertNotIn("-0.00", cells[2])  # the four GPUs' figures here are those of two
        self.assertIn("| broken-x4 | no \\| way |", text)


if __name__ == "__main__":
    unittest.main()
