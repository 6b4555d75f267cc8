"""Seeded hostile inputs at the command line: each ends with 0 or with one line and 2, and leaves nothing behind.

30 inputs in the fast lane, each command among them, 1,030 with `-m slow`. A failure names its number:
`fuzzed(tmp_path, NUMBER)` is the input.
"""

import copy
import gzip
import itertools
import json
import random
import re
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from lm_validity.cli import main
from lm_validity.tables.schema import PROTOCOLS, SCORES, write_table

ROOT = Path(__file__).resolve().parents[3]
LM_EVAL = sorted(ROOT.glob("tests/fixtures/lm_eval/*/*.json"))
SECONDS, MEGABYTES = 60, 2048  # at most, of one command
ODD_TEXTS = (
    "", " ", "a\x00", "\x1b[31mred", "\ufffe", "a\nb", "\u2028", "\ud800", "x" * 300, "../../x", "/", ".", "..",
    "#a", "=1+1", "@x", '"', "'", "a,b", "a\tb", "a;b", "<script>", "index.html", "page.json", "nan", "é" * 130, "🤖",
    "a|b", "model", "value", "final", "\r", "a\r\nb", "\u202ea", "%s{x}", "CON", "pretrained=x", "2024-13-45", "-",
    "--help",
)  # fmt: skip
ODD_NUMBERS = (
    0, -1, -5, 1e300, 5e300, -1e300, 1e-320, 2**63, 2**70, 10**400, float("nan"), float("inf"), -0.0, 0.5, 101,
    1.0000001,
)  # fmt: skip
ODD = (*ODD_TEXTS, *ODD_NUMBERS, None, True, [], {}, [1, "a"], {"a": {}}, [[]])


def result_file(random_: random.Random) -> dict:
    """One of eight files of lm-eval, with a group of tasks."""
    document = json.loads(random_.choice(LM_EVAL).read_text())
    return document | {"group_subtasks": {"mmlu": ["mmlu_a"]}, "model_name": f"org/m{random_.randrange(4)}"}


def evaluation(random_: random.Random) -> dict:
    metric = {"metric_id": "acc", "lower_is_better": False, "additional_details": {"num_fewshot": "5"}}
    return {
        "schema_version": "0.2.0",
        "evaluation_timestamp": "1700000000",
        "model_info": {"id": f"org/m{random_.randrange(4)}", "additional_details": {"revision": "main"}},
        "source_metadata": {"additional_details": {"lm_validity_protocol": "direct", "lm_validity_iteration": "5"}},
        "evaluation_results": [
            {
                "evaluation_name": name,
                "metric_config": dict(metric),
                "score_details": {
                    "score": random_.random(),
                    "uncertainty": {"standard_error": {"value": 0.01}, "num_samples": 100},
                },
            }
            for name in ("quiz", "arc")
        ],
    }


def lighteval(random_: random.Random) -> dict:
    scores = {"acc": random_.random(), "acc_stderr": 0.01}
    return {
        "config_general": {"model_name": "org/a", "model_config": {"model_name": "org/a"}, "start_time": 1.0},
        "results": {"lighteval|quiz|5": scores, "arc|0": dict(scores), "all": dict(scores)},
        "versions": {"lighteval|quiz|5": 0},
        "config_tasks": {"lighteval|quiz|5": {"effective_num_docs": -1}},
        "summary_tasks": {},
        "summary_general": {},
    }


def samples(random_: random.Random) -> list[dict]:
    return [
        {
            "doc_id": number,
            "doc": {"question": "q"},
            "target": "0",
            "arguments": {f"gen_args_{i}": {"arg_0": "Q:", "arg_1": f" {i}"} for i in range(2)},
            "resps": [[["-1.0", "False"]], [["-2.0", "False"]]],
            "filtered_resps": [["-1.0", "False"], ["-2.0", "False"]],
            "filter": "none",
            "metrics": ["acc"],
            "acc": float(random_.random() < 0.5),
        }
        for number in range(4)
    ]


def table(random_: random.Random) -> list[list[object]]:
    """Rows of a long table, or of a wide one."""
    names = [f"m{i}" for i in range(4)]
    if random_.random() < 0.5:
        header = ["model", "benchmark", "value", "stderr", "n_items", "protocol", "num_fewshot", "iteration"]
        rows = [[m, b, random_.random(), 0.01, 100, "direct", 0, 10] for m in names for b in ("quiz", "arc", "piqa")]
        return [header, *rows]
    rows = [[m, 1.5, *(random_.random() for _ in range(3))] for m in names]
    return [["model", "params_b", "quiz", "arc", "piqa"], *rows]


def mutated(value: object, random_: random.Random) -> object:
    """The value with one place of it changed: replaced, removed, repeated or renamed."""
    value = copy.deepcopy(value)
    place: object = value
    while isinstance(place, dict | list) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = random_.choice(keys)
        inner = place[key]
        if isinstance(inner, dict | list) and inner and random_.random() < 0.85:
            place = inner
            continue
        how = random_.random()
        if how < 0.65:
            place[key] = random_.choice(ODD)
        elif how < 0.75:
            del place[key]
        elif isinstance(place, dict):
            place[str(random_.choice(ODD_TEXTS))] = place.pop(key)
        else:
            place.append(copy.deepcopy(inner))
        break
    return value


def broken(content: bytes, random_: random.Random) -> bytes:
    """Bytes that are cut, changed, repeated, packed or of another encoding."""
    at = random_.randrange(len(content) + 1)
    how = random_.randrange(7)
    return [
        content[:at],
        content[:at] + bytes([random_.randrange(256)]) + content[at + 1 :],
        content + content,
        content[:at] + b"[" * 5000 + content[at:],
        gzip.compress(content)[: random_.choice((None, -4))],
        content.decode("utf-8", "replace").encode("utf-16"),
        content[:at] + random_.choice(ODD_TEXTS).encode("utf-8", "surrogatepass") + content[at:],
    ][how]


def as_text(rows: list[list[object]], random_: random.Random) -> str:
    separator = random_.choice(",,,\t;")
    quoted = random_.random() < 0.3
    return "\n".join(separator.join(f'"{cell}"' if quoted else f"{cell}" for cell in row) for row in rows) + "\n"


def put(path: Path, content: object, random_: random.Random) -> None:
    """Write the content, mutated up to three times; now and then its bytes are broken."""
    for _ in range(random_.choice((0, 1, 1, 1, 2, 3))):
        content = mutated(content, random_)
    if path.suffix == ".yaml":
        text = yaml.safe_dump(content, allow_unicode=True)
    elif path.suffix == ".jsonl":
        text = "\n".join(json.dumps(line) for line in content) if isinstance(content, list) else json.dumps(content)
    elif path.suffix == ".json":
        text = json.dumps(content, ensure_ascii=random_.random() < 0.5)
    else:
        text = as_text([row if isinstance(row, list) else [row] for row in content], random_)
    data = text.encode("utf-8", "surrogatepass")
    path.write_bytes(broken(data, random_) if random_.random() < 0.2 else data)


def parquet(path: Path, random_: random.Random) -> None:
    rng = np.random.default_rng(random_.randrange(2**32))
    common = {"stderr": 0.01, "n_items": 100, "metric": "acc,none"}
    keys = itertools.product(("m0", "m1", "m2", "m3"), ("quiz", "arc"), PROTOCOLS)
    rows = [{"model": m, "benchmark": b, "protocol": p, "value": rng.random(), **common} for m, b, p in keys]
    for _ in range(random_.choice((0, 1, 2))):
        row, column = random_.choice(rows), random_.choice([*rows[0], "seed", "iteration", "checkpoint"])
        number = SCORES.field(column).type in ("double", "int64")
        row[column] = random_.choice((-1, 0, 5, None) if number else [text for text in ODD_TEXTS if text != "\ud800"])
    write_table(pd.DataFrame(rows), SCORES, path)
    if random_.random() < 0.1:
        path.write_bytes(broken(path.read_bytes(), random_))


IMPORTS = {
    "csv": ("s.csv", table),
    "lm-eval": ("results_2024-01-01T00-00-00.json", result_file),
    "every-eval-ever": ("e.json", evaluation),
}
FILES = {**IMPORTS, "lighteval": ("l.json", lighteval), "samples": ("samples_quiz_2024-01-01T00-00-00.jsonl", samples)}


def fuzzed(folder: Path, number: int) -> list[str]:
    """Write the input of this number into `folder`; the command that reads it."""
    random_ = random.Random(number)
    kind = random_.choices(
        ("import", "any", "folder", "configuration", "sheet", "compare", "report"),
        (5, 3, 3, 4, 4, 1, 1 if number % 3 else 0),
    )[0]
    if kind == "import":
        name = random_.choice(list(IMPORTS))
        put(folder / IMPORTS[name][0], IMPORTS[name][1](random_), random_)
        return ["import", name, IMPORTS[name][0], "--output", "out"]
    if kind == "any":
        name, make = FILES[random_.choice(list(FILES))]
        put(folder / name, make(random_), random_)
        more = random_.choice(((), (), ("--protocol", "train_before_test"), ("--prepared-on", "quiz"), ("--strict",)))
        return ["import", name, "--output", "out", *more]
    if kind in ("folder", "report"):
        (folder / "in").mkdir()
        for each in range(random_.randrange(1, 5)):
            name, make = FILES[random_.choice(list(FILES))]
            place = folder / "in" / f"{each}"
            place.mkdir()
            put(place / name, make(random_), random_)
        if kind == "folder":
            return ["import", "in", "--output", "deep/out"]
        parquet(folder / "scores.parquet", random_)
        return ["report", "in", "scores.parquet", "--output", "site", "--resamples", "0"]
    if kind == "compare":
        parquet(folder / "scores.parquet", random_)
        put(folder / "b.tsv", [["benchmark", "metric", "chance"], ["quiz", "acc", 0.25], ["arc", "acc", 0.25]], random_)
        return ["compare", "m0", "m1", "--scores", "scores.parquet", "--benchmarks", "b.tsv"]
    shutil.copytree(ROOT / "config", folder / "config", ignore=shutil.ignore_patterns("paper", "checkpoints", "small"))
    if kind == "configuration":
        put(folder / "config" / "test.yaml", yaml.safe_load((folder / "config" / "test.yaml").read_text()), random_)
    else:
        sheet = folder / "config" / random_.choice(("test_models.tsv", "test_benchmarks.tsv", "test_miniature.tsv"))
        put(sheet, [line.split("\t") for line in sheet.read_text().splitlines()], random_)
    return ["preflight", "--configfile", "config/test.yaml"]


LEFT = {"site", *(f"site/{name}.tsv" for name in ("models", "benchmarks", "groups", "reading"))}
LEFT |= {f"site/{name}.parquet" for name in ("scores", "items", "settings")}
LEFT |= {"site/import.json", "site/lm-validity.json"}


def inputs_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def check_accepted(path: Path) -> None:
    rows = pq.read_table(path).to_pandas()
    assert len(rows)
    numbers = {"value": -1e100, "stderr": 0, "n_items": 1, "num_fewshot": 0, "iteration": 0, "tokens_b": 0}
    for column, least in numbers.items():
        known = rows[column].dropna().astype(float)
        assert known.between(least, 1e100).all(), (column, known.tolist())
    assert rows["protocol"].isin(PROTOCOLS).all()
    for column in ("model", "benchmark"):
        assert all(name.strip() == name != "" and not re.search("[\x00-\x1f\x7f\ufffe]", name) for name in rows[column])


def check(folder: Path, number: int, monkeypatch, capsys) -> int:
    folder.mkdir()
    command = fuzzed(folder, number)
    before, began = inputs_of(folder), time.process_time()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["lm-validity", *command])
    with pytest.raises(SystemExit) as ended:
        main()
    code, error = ended.value.code, capsys.readouterr().err
    assert time.process_time() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024 < MEGABYTES
    assert code in (0, 2) or command[0] == "preflight", error
    made = inputs_of(folder) - before
    assert not [path for path in made if "/." in f"/{path}"], made
    if code == 2:
        one_line = re.fullmatch(r"(?s)(?:.*\n)?Error: [^\n]* Hint: [^\n]+\n", error)
        question = "Error: what do the columns of " in error and "--columns" in error
        assert (one_line or question) and "Traceback" not in error, error
        assert "draft" not in error, error
        # a report that cannot be written leaves what may be corrected, and nothing else
        assert made <= (LEFT if command[0] == "report" else set()), made
    for path in folder.glob("**/scores.parquet"):
        if path.parent != folder and code == 0:
            check_accepted(path)
    shutil.rmtree(folder)
    return code


def run(numbers: range, folder: Path, monkeypatch, capsys) -> None:
    codes, failed = [], {}
    for number in numbers:
        try:
            codes.append(check(folder / str(number), number, monkeypatch, capsys))
        except BaseException as problem:  # an assertion, or whatever the command let through
            if isinstance(problem, KeyboardInterrupt):
                raise
            failed[number] = f"{type(problem).__name__}: {problem}"[:3000]
    assert not failed, "\n".join(f"{number}: {problem}" for number, problem in failed.items())
    assert 0.2 < np.mean([code == 2 for code in codes]) < 0.9  # neither all broken nor all harmless


MORE = [range(30, 60), *(range(first, first + 100) for first in range(100, 1100, 100))]


@pytest.mark.parametrize(
    "numbers", [range(30), *(pytest.param(more, marks=pytest.mark.slow) for more in MORE)], ids=str
)
def test_hostile_inputs_end_in_a_result_or_a_refusal(tmp_path, monkeypatch, capsys, numbers):
    run(numbers, tmp_path, monkeypatch, capsys)
