"""How far are the predictions from what was measured on N GPUs, beside the same errors on two?  One Markdown text.

Errors are those of `plimsoll validate` (predicted / measured - 1, rank 0) and `plimsoll compare --run-log`; a mean is that of
absolute errors, a bias that of signed ones.  Reserved and device memory of rows whose routing was recorded hang on the routing
of earlier steps as well: they are marked and stay out of the means, as validate does it.
"""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from table import read_lines

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "tests" / "data" / "measured"
GROUPS = (("FSDP2", "fsdp2-"), ("DeepSpeed, ZeRO 0 to 3", "ds-z"), ("DeepSpeed, native experts", "ds-native-"),
          ("DeepSpeed, AutoEP", "ds-autoep-"), ("plimsoll-run", "run-"))
FIGURES = (("allocated_peak", "allocated, peak"), ("reserved_peak", "reserved, peak"), ("device_peak", "device, peak"),
           ("step_time", "step time"))


def answer(command):
    """A command's JSON object.  What it says beside that is in the object too, unless there is none."""
    ran = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(ran.stdout)
    except ValueError:
        sys.exit(f"{ran.stderr}report: {' '.join(command[:2])} ended with {ran.returncode} and no answer")


class Errors:
    """Comparisons by row and figure, of tables of one number of GPUs."""

    def __init__(self, plimsoll, tables, cluster, calibration=None):
        self.rows, self.apart, self.unanswered = {}, set(), []
        if not tables:
            return
        here = set()
        for path in tables:
            here |= {row["id"] for row in json.loads(Path(path).read_text())["rows"] if row["cluster"] == cluster}
        with_it = ["--calibration", calibration] if calibration else []
        found = answer([plimsoll, "validate", *map(str, tables), "--json", *with_it])
        self.unanswered = [row for row in found["unanswered"] if row["id"] in here]
        for rows, apart in ((found["rows"], False), (found["given_routing"], True)):
            for row in rows:
                if row["id"] in here:
                    self.rows[row["id"], row["figure"]] = row
                    if apart:
                        self.apart.add((row["id"], row["figure"]))

    def ids(self):
        return list(dict.fromkeys(name for name, _ in self.rows))

    def of_group(self, start, figure):
        return [row["error"] for key, row in self.rows.items()
                if key[0].startswith(start) and key[1] == figure and key not in self.apart]

    def named(self, name, figure):
        """The row of that name, whatever number of GPUs its name ends with."""
        return next((row for key, row in self.rows.items() if key[1] == figure and base_name(key[0]) == name), None)


def base_name(name):
    return re.sub(r"-x\d+$", "", name)


def percent(error):
    return f"{100 * error:+.2f} %"


def markdown_table(head, rows):
    if not rows:
        return ""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def in_groups(two, many, fitted, gpus):
    """Mean and worst by group of rows and figure; step times with the calibration fitted here, too."""
    def three(errors):
        if not errors:
            return ["0", "", "", ""]
        return [str(len(errors)), f"{100 * statistics.fmean(map(abs, errors)):.2f} %", percent(max(errors, key=abs)),
                percent(statistics.fmean(errors))]

    rows = []
    for label, start in GROUPS:
        for figure, said in FIGURES:
            errors = many.of_group(start, figure)
            if errors:
                rows.append([label, said, *three(two.of_group(start, figure)), *three(errors)])
            if errors and fitted and figure == "step_time":
                rows.append([label, "step time, as calibrated here", "", "", "", "", *three(fitted.of_group(start, figure))])
    head = ["rows", "figure", "2 GPUs, before", "mean", "worst", "bias", f"{gpus} GPUs", "mean", "worst", "bias"]
    return markdown_table(head, rows)


def by_row(two, many, fitted):
    rows = []
    for name in many.ids():
        cells = [name]
        for figure, _ in FIGURES:
            row = many.rows.get((name, figure))
            if not row:
                cells += ["", "", ""]
                continue
            on_two = two.named(base_name(name), figure)
            size = f"{1e3 * row['measured']:.1f}" if figure == "step_time" else f"{row['measured'] / 2**30:.2f}"
            cells += [size, percent(row["error"]) + (" *" if (name, figure) in many.apart else ""),
                      percent(on_two["error"]) if on_two else ""]
        if fitted:
            row = fitted.rows.get((name, "step_time"))
            cells.append(percent(row["error"]) if row else "")
        rows.append(cells)
    head = ["row"]
    for said in ("allocated, GiB", "reserved, GiB", "device, GiB", "step, ms"):
        head += [said, "error", "on two"]
    return markdown_table(head + (["as calibrated here"] if fitted else []), rows)


def by_run(plimsoll, cluster, folder):
    """`compare --run-log` of each log: arena, bytes sent as predicted, the median step but the first, and how even it was."""
    rows = []
    for log in sorted(Path(folder).glob("*.jsonl")):
        base = log.with_suffix("")
        found = answer([plimsoll, "compare", "--json", "--model", f"{base}.model.json", "--cluster", cluster, "--plan",
                        f"{base}.plan.json", "--run-log", str(log)])
        figures = {figure["figure"]: figure for figure in found["figures"]}
        arena, sent, step = (figures.get(name) for name in ("arena bytes", "bytes sent", "step time"))
        uneven = [line["expert_load"]["max_over_mean"] for line in read_lines(log) if line.get("expert_load")]
        rows.append([log.stem, f"{arena['measured'] / 2**30:.2f}", percent(arena["error"]),
                     f"{sent['predicted'] / 1e9:.2f}", f"{1e3 * step['measured']:.1f}", percent(step["error"]),
                     f"{statistics.median(uneven[2:-1]):.2f}" if len(uneven) > 3 else ""])
    head = ["run", "arena, GiB", "error", "sent a step, GB, predicted", "step, ms", "error", "busiest expert, of the mean"]
    return markdown_table(head, rows)


def markdown(plimsoll, gpus, device, tables, runs, calibration, failed):
    """The report.  tables: files of measured rows; runs: folder of logs of plimsoll-run; calibration: fitted here, or None;
    failed: error by case."""
    cluster = f"{gpus}x{device}"
    known = [MEASURED / f"{device}_{name}.json" for name in ("torch", "deepspeed", "x2", "plimsoll_run")]
    two = Errors(plimsoll, [path for path in known if path.exists()], f"2x{device}")
    many = Errors(plimsoll, tables, cluster)
    fitted = Errors(plimsoll, tables, cluster, calibration) if calibration else None
    parts = [f"# {gpus} {device.upper()} of one node\n",
             "Predicted beside measured, rank 0; on two GPUs: the rows of tests/data/measured.\n",
             in_groups(two, many, fitted, gpus), by_row(two, many, fitted)]
    if many.apart:
        parts.append("\\* routing recorded: hangs on earlier steps' routing too, not in the means\n")
    parts += ["## plimsoll-run, beside its logs\n", by_run(plimsoll, cluster, runs)] if Path(runs).exists() else []
    if failed:
        parts.append("## Failed\n")
        parts.append(markdown_table(["case", "error"], [[name, " ".join(error.split())[:200]] for name, error in failed.items()]))
    if many.unanswered:
        parts.append("## Not answered\n")
        parts.append(markdown_table(["row", "why"], [[row["id"], row["reason"]] for row in many.unanswered]))
    return "\n".join(part for part in parts if part)
