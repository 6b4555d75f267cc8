"""Tables with a row for each item and a column for each model, and tables that look like them and are none."""

import pytest
from tests.unit.tables.conftest import options_of

from lm_validity.errors import InputError
from lm_validity.tables.formats.import_files import import_files
from lm_validity.tables.schema import ITEMS, read_table
from lm_validity.tables.task_facts import are_tasks

RIGHT = {"gpt": [1, 1, 0, 1], "llama": [0, 1, 0, 0], "claude": [1, 1, 1, 1]}  # in every four items


def matrix(item="question_id", items=24, right=RIGHT, words=("0", "1"), extra=None, first="q{}"):
    """The text of a table; `extra`: further columns, with a text of each row's number."""
    extra = extra or {}
    lines = [",".join([item, *extra, *right])]
    for row in range(items):
        answers = [words[int(of_model[row % 4])] for of_model in right.values()]
        lines.append(",".join([first.format(row), *(make(row) for make in extra.values()), *answers]))
    return "\n".join(lines) + "\n"


@pytest.fixture
def read(tmp_path):
    """Scores by model and benchmark, how many items there are, and the decisions, of the text of a table."""

    def run(text, reading="", **options):
        (tmp_path / "quiz.csv").write_text(text)
        if reading:
            (tmp_path / "reading.csv").write_text(f"what,where,decided\n{reading}\n")
            options["reading"] = tmp_path / "reading.csv"
        scores, log = import_files([tmp_path / "quiz.csv"], tmp_path / "out", options_of(**options))
        values = scores.set_index(["model", "benchmark"])["value"].to_dict()
        items = tmp_path / "out/items.parquet"
        decided = {(one.what, one.where): (one.decided, one.kind) for one in log.reading.decisions}
        return values, len(read_table(items, ITEMS)) if items.exists() else 0, decided

    return run


MEANS = {("gpt", "quiz"): 0.75, ("llama", "quiz"): 0.25, ("claude", "quiz"): 1.0}


@pytest.mark.parametrize(
    ("text", "items"),
    [
        (matrix(), 72),
        (matrix(items=8), 24),
        (matrix(item="id"), 72),
        (matrix(item="task_id", first="HumanEval/{}"), 72),
        (matrix(words=("FALSE", "TRUE")), 72),
        (matrix(words=("fail", "pass")), 72),
        (matrix(extra={"prompt": "what is {} ?".format}), 72),
    ],
)
def test_columns_are_models(read, text, items):
    values, number, decided = read(text)
    assert values == MEANS and number == items
    assert decided["column", "columns of scores"] == ("model", "unsure")


def test_a_model_with_shares_of_a_point_is_not_lost(read):
    """Each column counts or is named: 18 of 24 whole points and 6 halves are .875."""
    halves = RIGHT | {"claude": [1, 1, 1, 1]}
    lines = matrix(right=halves).splitlines()
    lines = [f"{line[:-1]}0.5" if number % 4 == 1 else line for number, line in enumerate(lines)]
    values, _, _ = read("\n".join(lines) + "\n")
    assert values["claude", "quiz"] == pytest.approx((18 + 6 * 0.5) / 24) and values["gpt", "quiz"] == 0.75


def test_ids_may_start_again_in_each_benchmark(read):
    lines = matrix(extra={"benchmark": lambda row: "ab"[row // 12]}).splitlines()
    lines = [lines[0], *(f"q{n % 12},{line.split(',', 1)[1]}" for n, line in enumerate(lines[1:]))]
    values, number, _ = read("\n".join(lines) + "\n")
    assert number == 72 and values["gpt", "a"] == values["gpt", "b"] == 0.75 and len(values) == 6


def test_what_the_reader_says_counts(read):
    gold = matrix(right={"gold": [1, 1, 1, 0]} | RIGHT)
    assert read(gold, "column,gold,left out")[:2] == (MEANS, 72)
    assert read(matrix(item="id", items=8), "column,id,item")[:2] == (MEANS, 24)
    assert read(matrix(item="id", items=8), across="models")[0] == MEANS
    assert ("q0", "gpt") in read(matrix(), "column,columns of scores,benchmark")[0]
    assert ("q0", "gpt") in read(matrix(), across="benchmarks")[0]
    with pytest.raises(InputError, match="not read as items"):
        read(matrix(), "column,quiz.csv,items")


def test_what_only_looks_like_it_stays_as_it_is(read):
    board = "id,open,moe,mmlu,gsm8k\n" + "".join(f"org/mdl-{n},{n % 2},{n % 3 % 2},0.5{n},0.2{n}\n" for n in range(25))
    values, items, _ = read(board)
    assert not items and values["org/mdl-3", "mmlu"] == 0.53 and values["org/mdl-24", "gsm8k"] == 0.224
    assert read(board, "column,id,model\ncolumn,mmlu,score\ncolumn,gsm8k,score")[0]["org/mdl-3", "mmlu"] == 0.53
    named = "id,name,alpha,beta\n" + "".join(f"{n},m-{n}x,{n % 2},{n % 3 % 2}\n" for n in range(25))
    assert read(named, "column,name,model")[0]["m-3x", "alpha"] == 1
    seeds = read(matrix(right={"seed1": [1, 0, 1, 1], "seed2": [1, 1, 1, 1]}))[0]
    assert not {"seed1", "seed2"} & {model for model, _ in seeds}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["MMLU", "HellaSwag", "GSM8K"], True),
        (["ARC-Easy", "TruthfulQA", "our own"], True),
        (["openai/gpt-4o", "openai/o3-mini", "anthropic/claude-3"], False),
        (["Minerva-1B", "Minerva-3B", "Minerva-7B", "Italia-9B"], False),
        (["Med-PaLM", "M-7B", "random"], False),
        (["m-1", "m-2", "m-3"], False),
    ],
)
def test_names_of_tasks_are_whole_names(names, expected):
    assert are_tasks(names, ["Coding", "Reasoning"]) is expected
    assert not are_tasks(names, ["mmlu"])


def test_makers_whose_names_begin_tasks_are_models(read):
    text = "{},Coding,Maths Olympiad\nopenai/gpt-4o,0.5,0.2\nopenai/o3-mini,0.6,0.3\nopenai/o1,0.7,0.4\n"
    for header in ("name", ""):
        assert read(text.format(header))[0]["openai/o1", "Coding"] == 0.7
