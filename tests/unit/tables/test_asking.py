"""Tables of unknown people: what is sure, what is asked, and that what is printed was tried."""

import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from tests.unit.tables.conftest import put

from lm_validity.errors import InputError
from lm_validity.tables.asking import Question, Reader
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.frame import READABLE, Source, frame
from lm_validity.tables.told import parse, show

MODELS = ["ant-7b", "ant-13b", "bee-8b", "lark/cat-70b", "gpt-4x", "llama-3-9b", "dog-2b", "elk-34b"]
TASKS = ["mmlu", "gsm8k", "hellaswag", "piqa", "boolq", "winogrande"]
PLAIN = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "iris", "jade"]
OTHERS = ["kelp", "lotus", "maple", "north", "onyx", "pine", "quartz", "reed", "sage", "tulip"]
SHAPES = ("wide", "long", "runs", "items", "turned", "nested_model", "nested_task", "file_model", "folder_model")
KINDS = ("csv", "tsv", "json", "md", "xlsx", "html", "yaml", "parquet")


def reader_of(path: Path) -> Reader:
    """A reader of a file, or of the files of a folder."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in READABLE)
    base = path.parent if path.is_file() else path
    sources = [Source(file, (*file.relative_to(base).parts[:-1], file.stem), path.is_file()) for file in files]
    return Reader(frame(sources), path.name)


def scores(reader: Reader, text: str | None) -> dict[tuple[str, ...], float]:
    """The scores of a reading, by model, benchmark and, where there are, run."""
    table = pd.concat([long.scores for long in reader.read(text)])
    keys = [name for name in ("model", "benchmark", "run", "checkpoint", "metric") if name in table]
    return {tuple(map(str, row[:-1])): row[-1] for row in table[[*keys, "value"]].itertuples(index=False, name=None)}


def save(rows: list[dict[str, str]], path: Path) -> Path:
    """The rows as a file of the kind that its ending says."""
    table, kind = pd.DataFrame(rows), path.suffix[1:]
    if kind in ("csv", "tsv"):
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    elif kind in ("json", "yaml"):
        path.write_text(json.dumps(rows))  # JSON is YAML
    elif kind == "xlsx":
        pytest.importorskip("openpyxl")
        table.to_excel(path, index=False)
    elif kind == "parquet":
        table.to_parquet(path)
    elif kind == "html":
        pytest.importorskip("lxml")
        path.write_text(table.to_html(index=False))
    else:
        lines = [list(table), ["---"] * table.shape[1], *table.values.tolist()]
        path.write_text("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))
    return path


def extras(chance: random.Random, rows: list[dict[str, str]], neutral: bool) -> None:
    """Columns that are no scores: a count, a rank, tokens, a long text, an organisation, a cost, a remark."""
    headers = {"count": "Flag count", "rank": "rank", "tokens": "total tokens", "text": "comment",
               "org": "organization", "cost": "spend", "mood": "remark"}  # fmt: skip
    order = list(range(1, len(rows) + 1))
    chance.shuffle(order)
    for number, kind in enumerate(chance.sample(list(headers), chance.randint(1, 5)), 20):
        for place, row in zip(order, rows, strict=True):
            cells = {
                "count": str(chance.randint(5, 900)), "rank": str(place), "tokens": str(chance.randint(2000, 90000)),
                "text": f"a long remark on this, number {place}: " + " ".join(chance.sample(OTHERS, 6)),
                "org": chance.choice(["Lark", "Wren", "Owl"]), "cost": f"{chance.random() * 4:.2f}",
                "mood": chance.choice(["fine", "odd"]),
            }  # fmt: skip
            row[f"c{number}" if neutral else headers[kind]] = cells[kind]


def table(
    chance: random.Random, shape: str, values: dict[tuple[str, str], str], head: Callable[[str, int], str]
) -> tuple[list[dict[str, str]], dict[tuple[str, ...], float]]:
    """The rows of a table of a shape, and the scores that it holds; no rows for nested objects and folders."""
    models, tasks = (list(dict.fromkeys(key[i] for key in values)) for i in (0, 1))
    truth: dict[tuple[str, ...], float] = {key: float(value) for key, value in values.items()}
    model, task, score = head("model", 1), head("task", 2), head("score", 3)
    rows: list[dict[str, str]] = []
    if shape == "wide":
        rows = [{model: m, **{t: values[m, t] for t in tasks}} for m in models]
    elif shape == "turned":
        rows = [{head("benchmark", 1): t, **{m: values[m, t] for m in models}} for t in tasks]
    elif shape == "long":
        rows = [{model: m, task: t, score: value} for (m, t), value in values.items()]
    elif shape == "runs":
        truth = {(*key, str(run)): chance.random() for key in values for run in range(1, 4)}
        rows = [{model: m, task: t, head("seed", 4): run, score: f"{v:.17g}"} for (m, t, run), v in truth.items()]
    elif shape == "items":
        right = {key: [chance.random() < 0.6 for _ in range(12)] for key in values}
        truth = {key: sum(hits) / 12 for key, hits in right.items()}
        rows = [{model: m, task: t, head("question_id", 4): f"{t[:2]}{i}", head("correct", 3): str(hit)}
                for (m, t), hits in right.items() for i, hit in enumerate(hits)]  # fmt: skip
    return rows, truth


def drawn(chance: random.Random, folder: Path) -> tuple[Path, dict[tuple[str, ...], float]]:
    """A random input of known roles, and the scores that it holds."""
    shape, neutral = chance.choice(SHAPES), chance.random() < 0.6
    models = chance.sample(MODELS if chance.random() < 0.5 else PLAIN, chance.randint(2, 6))
    tasks = chance.sample(TASKS if chance.random() < 0.3 else OTHERS, chance.randint(2, 5))
    percent = chance.random() < 0.5
    values = {
        (m, t): f"{100 * chance.random():.1f}" if percent else f"{chance.random():.3f}" for m in models for t in tasks
    }

    def head(word: str, number: int) -> str:
        return f"c{number}" if neutral else word

    rows, truth = table(chance, shape, values, head)
    if rows:
        if shape != "turned":
            extras(chance, rows, neutral)
            chance.shuffle(rows)
        columns = list(rows[0])
        chance.shuffle(columns)
        rows = [{name: row[name] for name in columns} for row in rows]
        return save(rows, folder / f"board.{chance.choice(KINDS)}"), truth
    if shape.startswith("nested"):
        deep = chance.random() < 0.5
        tree: dict[str, dict[str, object]] = {}
        for (m, t), value in truth.items():
            a, b = (m, t) if shape == "nested_model" else (t, m)
            record = {head("acc", 3): value, head("samples", 5): chance.randint(100, 999)}
            tree.setdefault(a, {})[b] = record if deep else value
        return put(folder / "results.json", tree), truth
    for m in models:
        place = folder / "results" / m.replace("/", "__")
        if shape == "file_model":
            put(place.with_name(f"{place.name}.json"), {t: truth[m, t] for t in tasks})
        for t in tasks if shape == "folder_model" else ():
            put(place / f"{t}.json", {head("score", 1): truth[m, t], head("n", 2): chance.randint(100, 999)})
    return folder / "results", {(m.replace("/", "__"), t): value for (m, t), value in truth.items()}


def test_random_tables_are_read_right_or_asked_about_with_the_right_reading_among_three(tmp_path):
    """Of frames of known roles in any shape and container, 95% at least are sure or have the right reading among those
    printed, and what is sure is right. Each reading that is printed gives a table."""
    chance, right, number = random.Random(58), 0, 60
    for place in range(number):
        (tmp_path / str(place)).mkdir()
        path, truth = drawn(chance, tmp_path / str(place))
        reader = reader_of(path)
        try:
            assert scores(reader, None) == pytest.approx(truth), path
            right += 1
        except Question as question:
            right += any([scores(reader, text) == pytest.approx(truth) for text in question.readings])
    assert right >= 0.95 * number


@pytest.mark.parametrize("kind", KINDS)
def test_a_container_is_read_like_the_same_table_as_csv_alone_and_in_a_folder(tmp_path, kind):
    """Headers that say everything need no question, whatever holds the table."""
    truth = {("ant", "mmlu"): 0.5, ("bee", "mmlu"): 0.25, ("ant", "piqa"): 0.75, ("bee", "piqa"): 0.125}
    rows = [{"model": model, "task": task, "acc": str(value)} for (model, task), value in truth.items()]
    path = save(rows, tmp_path / f"board.{kind}")
    assert scores(reader_of(path), None) == scores(reader_of(tmp_path), None) == truth


def test_the_subject_of_answers_reaches_the_table_of_items(tmp_path):
    """A column `subject` beside the benchmark's is a fact of the items, without a benchmark's it is the benchmark."""
    lines = [f"{m},quiz,q{i},s{i % 9},{(i + len(m)) % 2}" for m in ("ant", "wasp") for i in range(18)]
    (tmp_path / "a.csv").write_text("\n".join(["model,benchmark,question_id,subject,correct", *lines]))
    import_files([tmp_path / "a.csv"], tmp_path / "out")
    items = pd.read_parquet(tmp_path / "out" / "items.parquet")
    assert items["subject"].nunique() == 9 and set(items["benchmark"]) == {"quiz"} and len(items) == 36


KINDS_OF_PUBLIC_FILES = [
    ("model=backbone+method, benchmark=*, score=quiz_acc,law_acc",
     "backbone,method,quiz_acc,law_acc\nant-7b,plain,.5,.6\nant-7b,RAG,.6,.7\nbee-8b,plain,.4,.3\nbee-8b,RAG,.5,.55"),
    ("model=model+effort, benchmark=*, score=Biology,Art",
     "model,effort,Biology,Art\nant,low,37/43,9/10\nant,high,40/43,8/10\nbee,low,30/43,7/10"),
    ("model=model, benchmark=*, score=tele,net",
     'model,tele,net\nant,"[0.91, 0.02]","[0.5, 0.04]"\nbee,"[0.85, 0.01]","[0.6, 0.05]"'),
    ("model=model, benchmark=*, score=Task 1,Task 2", "model,Task 1,Task 2\nant,Pass,Fail\nbee,Fail,Pass"),
    ("model=model, benchmark=*, score=mean, n=n", "model,mean,ci_low,ci_high,n\nant,5.4,4.6,6.2,9\nbee,5.2,4.5,5.9,9"),
    ("model=model_id, benchmark=competition_id, metric=metric_name, score=score_raw",
     "model_id,sha256,metric_name,competition_id,score_raw\nant,d61d4294379510d1,auc,churn,.92\n"
     "ant,7ffd9eed20e4f5f4,rmse,traffic,.06\nbee,0a720027ab76f416,auc,churn,.88\n"
     "bee,ce156c6f8dea4dca,rmse,traffic,.07"),
    ("model=Model, benchmark=*, score=Science,Arts,Law",
     "Model,Overall,Science,Arts,Law\nant-1b,65.0,75.0,80.0,25.0\nbee-2b,80.5,82.5,80.0,65.0"),
    ("model=run, benchmark=*, score=mmlu,arc_easy", "run,bits,mmlu,arc_easy\nbase_4bit,4,55.9,72.7\ntuned,8,54.1,70.2"),
    ("model=file, benchmark=*, answer=pred==label", "pred,label\nspam,ham\nham,ham\nspam,spam\nham,spam"),
    ("model=id, benchmark=*, score=composite", "id,input_per_1m,composite\nant-7b,15.5,61.5\nbee-8b,1.2,55.1"),
    ("model=model, benchmark=bucket, score=mean_score, n=count",
     "model,bucket,count,mean_score\nant,cost_performance,2,.5\nant,quality,3,.6\nant,law,3,.7"),
    ("model=Model, benchmark=*, score=Cos", "Model,Cos,Cos_p,rank\nant,.55,.001,2\nbee,.85,.02,1\ncat,.6,.5,3"),
    ("model=model, benchmark=dataset, score=overall_acc, run=timestamp",
     "model,dataset,timestamp,overall_acc\nant,nycc,20260511192503,52.3\nant,nycc,20260511193241,53.7\n"
     "bee,nycc,20260511194058,50.1\nbee,shp,20260511195058,61.0\nant,shp,20260511196058,63.0"),
    ("model=Tier, benchmark=*, score=Mean score, n=Tasks", "Tier,Tasks,Mean score\nL2,5,.6\nL3,3,.66"),
    ("model=name, benchmark=*, score=law,art",
     "name,paper_url,law,art\nGPT-4o,https://a.org/1,78.5,71.2\nGPT-5,https://a.org/2,75.2,69.3"),
    ("model=models.slug, benchmark=*, score=elo,win_rate",
     '{"gen": {"model": "judge-x"}, "models": [{"slug": "ant-7b", "elo": 1135.5, "win_rate": 0.3}, '
     '{"slug": "bee-8b", "elo": 1099.2, "win_rate": 0.4}]}'),
    ("model=Model, benchmark=*, score=Math Acc,Math F1,Code Acc,Code F1",
     ",Results of spring,,,\n,Math,,Code,\nModel,Acc,F1,Acc,F1\nant-7b,.41,.52,.33,.44\nbee-8b,.45,.57,.31,.46"),
    ("model=name, benchmark=*, score=law,art, ignore=level 1:ranks",
     '[{"name": "ant-7b", "scores": {"law": 70.5, "art": 50.1}, "ranks": {"law": 1, "art": 2}}, '
     '{"name": "bee-8b", "scores": {"law": 60.5, "art": 55.1}, "ranks": {"law": 2, "art": 1}}]'),
    ("model=*, benchmark=level 1, score=ant-1b,bee-2b",
     '{"models": ["ant-1b", "bee-2b"], "law": {"ant-1b": 0.5, "bee-2b": 0.6}, "art": {"ant-1b": 0.4, "bee-2b": 0.7}}'),
    ("model=name, benchmark=*, score=tides", 'name,95% CI,tides\nant,"[0.732, 0.790]",.76\nbee,"[0.611, 0.673]",.64'),
]  # fmt: skip


@pytest.mark.parametrize(("reading", "text"), KINDS_OF_PUBLIC_FILES)
def test_the_right_reading_of_what_public_files_hold_is_printed_first(tmp_path, reading, text):
    """Conditions of systems, counts and errors in cells, intervals, digests, ties, prices, places, lists: each kind of
    fault that a batch of public files had shown."""
    path = tmp_path / ("board.json" if text[0] in "[{" else "board.csv")
    path.write_text(text)
    with pytest.raises(Question) as asked:
        reader_of(path).read(None)
    assert asked.value.readings[0] == reading


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("a condition", "model,task,unit,score\nant,mmlu,x,.5\nant,piqa,y,.5\nbee,mmlu,y,.5\nbee,piqa,x,.4"),
        ("an average among the rows", "model,benchmark,score\nant,a,.5\nant,average,.4\nbee,a,.3\nbee,average,.2"),
        ("counts without evidence", "model,total wins,flags\nant,5,7\nbee,6,9"),
        ("numbers of no known task", "model,tides,coins\nant,.5,.7\nbee,.6,.9"),
        ("subjects, or models, by accuracy", "Domain,Accuracy\nlaw,.5\nart,.6"),
    ],
)  # fmt: skip
def test_what_is_not_sure_is_asked(tmp_path, name, rows):
    """Text columns that nothing explains, rows of averages and unknown numbers make a question."""
    (tmp_path / "t.csv").write_text(rows)
    with pytest.raises(Question):
        reader_of(tmp_path / "t.csv").read(None)


@pytest.mark.parametrize(
    ("heads", "last", "unit"),
    [
        ("tides,coins", "11,8", "scale unknown"),
        ("tides,coins", "11,62", "percent"),
        ("tides acc,law acc", "11,8", "percent"),
    ],
)
def test_scores_of_at_most_25_under_no_known_metric_are_on_an_unknown_scale(tmp_path, heads, last, unit):
    """They may be ratings, unless others of the table are percentages."""
    (tmp_path / "t.csv").write_text(f"model,{heads}\nant,21.5,13\nbee,24.5,9.5\ncat,{last}\n")
    with pytest.raises(Question, match=f"2 benchmarks, {unit}, higher is better"):
        reader_of(tmp_path / "t.csv").read(None)


def test_a_command_is_printed_for_each_reading_as_the_shell_takes_it(tmp_path):
    """What is printed after --columns is one word of the shell, which parses to the reading."""
    (tmp_path / "t.csv").write_text('Bob\'s "model",tides: a,coins+b\nant,.5,.7\nbee,.6,.9\n')
    with pytest.raises(Question) as asked:
        reader_of(tmp_path / "t.csv").read(None)
    commands = re.findall(r"lm-validity import .*", asked.value.problem)
    assert len(commands) == len(asked.value.readings) > 0
    for command, reading in zip(commands, asked.value.readings, strict=True):
        words = shlex.split(command)
        assert words[words.index("--columns") + 1] == reading
        assert "; ".join(map(show, parse(reading))) == reading


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("modle=model", "modle"),
        ("model=model, model=x", "model twice"),
        ("model=nothing, score=tides", "nothing"),
        ("model=model, score=note", "row 2"),
        ("model=model, score=tides, answer=coins", "score and answer"),
        ("tides", "no role"),
        ("model=model, score=tides,coins, benchmark=note", "headers"),
        ("model=note, score=tides", "twice"),
        ("model=model, answer=elo", "row 2"),
        ("model=model, score=tides, ignore=model:cow", "cow"),
    ],
)
def test_a_reading_that_cannot_be_is_refused_by_name(tmp_path, columns, named):
    """A role always has an effect, or is refused with the column, the row or the value."""
    (tmp_path / "t.csv").write_text("model,tides,coins,note,elo\nant,.5,.7,same,1200\nbee,.6,.9,same,1300\n")
    with pytest.raises(InputError) as refused:
        reader_of(tmp_path / "t.csv").read(columns)
    assert named in refused.value.problem
