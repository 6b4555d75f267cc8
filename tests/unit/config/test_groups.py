"""Groups of models: what `--group` and `agreement.groups` may say, and which models are in one."""

from datetime import date

import pytest
import yaml

from lm_validity.config.load import load_run
from lm_validity.config.rows import parse_group
from lm_validity.config.sheets import read_models as workflow_models
from lm_validity.errors import InputError
from lm_validity.run.workspace import reports_of
from lm_validity.tables.schema import group_members, read_model_facts

SHEET = (
    "model\tpath\tfamily\tparameters_b\ttokens_b\treleased\tmerged\n"
    "a\tA/a\told\t1\t100\t2023-10-31\t0\n"
    "b\tA/b\tnew\t1\t100\t2023-11\t1\n"
    "c\tA/c\tnew\t1\t\t2024-02\t1\n"
    "d\tA/d\told\t2\t100\t\t\n"
)


@pytest.fixture
def sheet(tmp_path):
    path = tmp_path / "models.tsv"
    path.write_text(SHEET)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("released>=2023-11", [False, True, True, None]),
        ("released >= 2023-11-01", [False, True, True, None]),
        ("family=new", [False, True, True, False]),
        ("merged", [False, True, True, None]),
    ],
)
def test_a_group_of_the_models_sheet(sheet, text, expected):
    group = parse_group(text)
    assert group_members(read_model_facts(sheet, [group]), group, sheet) == expected
    rows = workflow_models(sheet, run="r", groups=[group, parse_group("merged")]).values()
    assert [group.has(getattr(row, group.column)) for row in rows] == expected


@pytest.mark.parametrize(
    "text", ["released>=2024", "released>=2023-13", "released=2023-11", "released", "a<b", "", "family="]
)
def test_what_is_no_group_is_refused_with_a_hint(text):
    with pytest.raises(InputError) as caught:
        parse_group(text)
    assert repr(text) in caught.value.problem
    assert caught.value.hint


@pytest.mark.parametrize("value", ["2024", "1700000000", "yesterday", "2023-02-30"])
def test_a_date_that_is_none_is_refused_with_its_row(sheet, value):
    sheet.write_text(SHEET.replace("2024-02", value))
    with pytest.raises(InputError) as caught:
        read_model_facts(sheet)
    assert f"{sheet}, row 4, column 'released', value {value!r}" in caught.value.problem
    sheet.write_text(SHEET)
    assert read_model_facts(sheet)["released"].tolist()[:2] == [date(2023, 10, 31), date(2023, 11, 1)]


@pytest.mark.parametrize(
    ("text", "change", "word"),
    [
        ("family=newr", ("", ""), "new"),  # its hint
        ("released>=2030-01", ("", ""), "no model"),
        ("released>=2020-01", ("", ""), "every model"),
        ("tried", ("", ""), "'tried'"),
        ("path", ("", ""), "0 and 1"),
        ("merged", ("\t100\t", "\t\t"), "compute"),
        ("merged", ("2023-10-31\t0", "2023-10-31\tperhaps"), "row 2, column 'merged', value 'perhaps'"),
    ],
)
def test_a_group_without_two_sides_is_refused(sheet, text, change, word):
    sheet.write_text(SHEET.replace(*change) if change[0] else SHEET)
    group = parse_group(text)
    with pytest.raises(InputError) as caught:
        group_members(read_model_facts(sheet, [group]), group, sheet)
    assert word in f"{caught.value.problem} {caught.value.hint}"


def test_the_groups_of_a_configuration_are_checked_before_the_run(sheet, tmp_path):
    (tmp_path / "benchmarks.tsv").write_text("benchmark\narc_easy\n")

    def load(*groups, **more):
        values = more | {"name": "r", "models": str(sheet), "benchmarks": str(tmp_path / "benchmarks.tsv")}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(values | {"agreement": {"groups": list(groups)}}))
        return load_run(tmp_path / "run.yaml")

    run = load("merged", "family=new")
    assert reports_of("agreement", run.configuration) == ("agreement", "factors", "models", "readiness")
    for groups, problem in [
        (["merged", "family=newr"], "family=newr"),
        (["merged", "released>=2030"], "2030"),
        ([], "merged"),
    ]:
        with pytest.raises(InputError, match=problem):  # without the group, its column is an unknown one
            load(*groups)
    with pytest.raises(InputError, match="checkpoint"):  # which asks of no group
        load("merged", "family=nobody", studies=["signal"])
