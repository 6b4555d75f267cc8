"""lm-eval's result files: layouts of several of its versions; our tables written so and read back."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import read_files
from typer.testing import CliRunner

from lm_validity.cli.imports import exports as app
from lm_validity.errors import InputError
from lm_validity.outputs import LIST
from lm_validity.tables.formats.exports import write_lm_eval
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES, read_scores, read_table, write_table


def read_lm_eval(paths):
    """The scores of lm-eval's files, none of which may be left out."""
    return read_files(paths, ImportOptions(format="lm-eval"), ImportLog(strict=True))


def write(path, document: dict):
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


VERSION_0_3 = {
    "results": {
        "arc_easy": {"acc": 0.5, "acc_stderr": 0.01, "acc_norm": 0.4, "acc_norm_stderr": 0.02},
        "wikitext": {"word_perplexity": 37.4, "byte_perplexity": 1.97, "bits_per_byte": 0.98},
    },
    "versions": {"arc_easy": 0, "wikitext": 1},
    "config": {"model": "hf-causal", "model_args": "pretrained=gpt2,revision=main", "num_fewshot": 0, "device": "cpu"},
}
VERSION_0_4_0 = {
    "results": {
        "group": {"acc,none": 0.6, "acc_stderr,none": 0.02, "alias": "group"},
        "arc_easy": {"acc,none": 0.5, "acc_stderr,none": 0.01, "alias": " - arc_easy"},
    },
    "groups": {"group": {"acc,none": 0.6, "acc_stderr,none": 0.02, "alias": "group"}},
    "configs": {"arc_easy": {"task": "arc_easy"}},
    "versions": {"arc_easy": 1.0},
    "n-shot": {"arc_easy": 0},
    "config": {"model": "hf", "model_args": "pretrained=gpt2", "batch_size": "1"},
    "git_hash": "abc",
}
VERSION_0_4_13 = {
    "results": {
        "arc_easy": {
            "name": "arc_easy",
            "alias": "arc_easy",
            "sample_len": 9,
            "acc,none": 0.5,
            "acc_stderr,none": 0.01,
            "acc_norm,none": 0.45,
        },
        "wiki": {"bits_per_byte,none": 0.9, "bits_per_byte_stderr,none": "N/A"},
        "nq_open": {
            "alias": "nq_open",
            "exact_match,remove_whitespace": 0.1,
            "exact_match_stderr,remove_whitespace": 0.0,
        },
        "group": {"alias": "group", "acc,none": 0.5, "acc_stderr,none": 0.01},
    },
    "group_subtasks": {"arc_easy": [], "nq_open": [], "group": ["arc_easy"]},
    "higher_is_better": {
        "arc_easy": {"acc": True},
        "wiki": {"bits_per_byte": False},
        "nq_open": {"exact_match": True},
        "group": {"acc": True},
    },
    "n-samples": {"arc_easy": {"original": 9, "effective": 9}},
    "config": {"model": "hf", "model_args": {"pretrained": "gpt2"}},
    "model_source": "hf",
    "model_name": "gpt2",
    "chat_template": None,
}


@pytest.mark.parametrize("document", [VERSION_0_3, VERSION_0_4_0, VERSION_0_4_13], ids=["0.3", "0.4.0", "0.4.13"])
def test_layouts_of_several_versions(document, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(document))
    rows = {(row.benchmark, row.metric): row for row in read_lm_eval([path]).itertuples()}
    accuracy = rows["arc_easy", "acc,none"]
    assert (accuracy.model, accuracy.value, accuracy.stderr) == ("gpt2", 0.5, 0.01)
    assert not any(benchmark == "group" for benchmark, _ in rows)
    if document is VERSION_0_3:
        assert rows["arc_easy", "acc_norm,none"].stderr == 0.02 and len(rows) == 5
        assert rows["wikitext", "bits_per_byte,none"].value == 0.98
        assert pd.isna(rows["wikitext", "bits_per_byte,none"].stderr)
    if document is VERSION_0_4_13:
        assert {metric for benchmark, metric in rows if benchmark == "arc_easy"} == {"acc,none", "acc_norm,none"}
        assert ("nq_open", "exact_match,remove_whitespace") in rows and len(rows) == 4
        assert accuracy.n_items == 9 and accuracy.higher_is_better
        assert (accuracy.protocol, accuracy.prompt) == ("direct", "plain")
        corpus = rows["wiki", "bits_per_byte,none"]
        assert not corpus.higher_is_better and pd.isna(corpus.stderr)


def test_lm_eval_of_two_models_and_twice_the_same(tmp_path):
    first = write(tmp_path / "a.json", VERSION_0_4_13)
    other = write(tmp_path / "b.json", VERSION_0_4_13 | {"model_name": "other", "chat_template": "{{ x }}"})
    frame = read_lm_eval([first, other])
    assert list(frame.columns) == SCORES.names
    assert set(frame["model"]) == {"gpt2", "other"} and set(frame["prompt"]) == {"plain", "chat"}
    assert len(read_lm_eval([first, first])) == 4  # one file, named twice
    again = write(tmp_path / "again.json", VERSION_0_4_13)
    with pytest.raises(InputError, match="4 scores also in"):
        read_lm_eval([first, again])


@pytest.mark.parametrize(
    ("document", "message"),
    [({}, "no object 'results'"), ({"results": {"a": {"acc,none": 1}}}, "names the model")],
)
def test_bad_lm_eval_files(tmp_path, document, message):
    with pytest.raises(InputError, match=message):
        read_lm_eval([write(tmp_path / "r.json", document)])


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("n-samples", {"arc_easy": 5}, "'n-samples', 'arc_easy' is not an object but 5"),
        ("higher_is_better", {"arc_easy": True}, "'higher_is_better', 'arc_easy' is not an object but True"),
        ("group_subtasks", [1], "'group_subtasks' is not an object but [1]"),
        ("groups", ["group"], "'groups' is not an object but ['group']"),
        ("lm_validity", [1], "'lm_validity' is not an object but [1]"),
        ("config", "hf", "'config' is not an object but hf"),
    ],
)
def test_a_malformed_section_is_named(section, value, said, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(VERSION_0_4_0 | {section: value}))
    with pytest.raises(InputError) as error:
        read_lm_eval([path])
    assert f"{path}: {said}" in str(error.value)


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("n-samples", {"arc_easy": {"effective": 100.5}}, "'arc_easy', 'effective': 100.5 is not a whole number"),
        ("n-samples", {"arc_easy": {"effective": "100"}}, "'arc_easy', 'effective': '100' is not a finite number"),
        ("higher_is_better", {"arc_easy": {"acc": "yes"}}, "'arc_easy', 'acc': 'yes' is not a boolean"),
        ("results", {"arc_easy": {"acc,none": 10**400}}, "arc_easy, acc,none: 1000"),
        ("lm_validity", {"seed": "x"}, "'lm_validity', 'seed': 'x' is not a finite number"),
        ("lm_validity", {"checkpoint": 5}, "'lm_validity', 'checkpoint': 5 is not text"),
        ("lm_validity", {"selected": {"arc_easy": "no"}}, "'selected', 'arc_easy': 'no' is not a boolean"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_before_a_table_is_written(section, value, said, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(VERSION_0_4_13 | {section: value}))
    with pytest.raises(InputError) as error:
        read_lm_eval([path])
    assert str(error.value).startswith(str(path)) and said in str(error.value)


def test_a_whole_count_written_as_a_fraction_is_read(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(VERSION_0_4_13 | {"n-samples": {"arc_easy": {"effective": 9.0}}}))
    write_table(read_lm_eval([path]), SCORES, tmp_path / "scores.parquet")
    read = read_table(tmp_path / "scores.parquet", SCORES).set_index("benchmark")
    assert set(read["n_items"]["arc_easy"]) == {9}


def our_scores() -> pd.DataFrame:
    """Two models, both protocols, prompts, two seeds, a corpus without a standard error, an early checkpoint."""
    common = {"checkpoint": "final", "split": "test", "metric": "acc,none", "n_items": 7, "selected": True}
    common |= {"higher_is_better": True, "stderr": 0.125, "source": "lm-validity", "tokens_b": 0.1 + 0.2}
    rows = []
    for model in ("a", "org/b"):
        direct = common | {"model": model, "protocol": "direct"}
        rows += [direct | {"benchmark": "x", "prompt": "plain", "value": 1 / 3, "selected": False}]
        rows += [direct | {"benchmark": "x", "prompt": "chat", "value": 0.1 + 0.2}]
        rows += [direct | {"benchmark": "x", "prompt": "chat", "value": 0.5, "split": "validation"}]
        rows += [direct | {"benchmark": "x", "prompt": "plain", "value": 0.2, "checkpoint": "s1", "iteration": 1}]
        corpus = {"benchmark": "wiki", "metric": "bits_per_byte,none", "higher_is_better": False, "stderr": None}
        rows += [direct | corpus | {"prompt": "plain", "value": 1.25}]
        rows += [direct | corpus | {"prompt": "plain", "value": 9.5, "metric": "word_perplexity,none"}]
        for seed in (0, 1):
            prepared = {"benchmark": "x", "prompt": "plain", "protocol": "train_before_test", "seed": seed}
            rows += [common | prepared | {"model": model, "value": 0.7 + seed / 7}]
    return pd.DataFrame(rows)


def test_written_and_read_back(tmp_path):
    write_table(our_scores(), SCORES, tmp_path / "scores.parquet")
    ours = read_table(tmp_path / "scores.parquet", SCORES)
    written = write_lm_eval(ours, tmp_path / "out")
    assert len(written) == 2 * 6 and {path.parent.name for path in written} == {"a", "org__b"}
    write_table(read_lm_eval(written), SCORES, tmp_path / "back.parquet")
    back = read_table(tmp_path / "back.parquet", SCORES)
    order = ["model", "benchmark", "protocol", "checkpoint", "prompt", "split", "seed", "metric"]
    ours, back = (frame.sort_values(order, ignore_index=True) for frame in (ours, back))
    assert (back["source"] == "lm-eval").all()
    pd.testing.assert_frame_equal(back.drop(columns="source"), ours.drop(columns="source"), check_exact=True)


def test_a_written_file_is_in_lm_evals_own_layout(tmp_path):
    """The keys that lm-eval's own table printer and aggregators read."""
    from lm_eval.utils import make_table

    ours = our_scores()
    paths = write_lm_eval(ours[(ours["model"] == "a") & ours["seed"].isna()], tmp_path)
    document = json.loads(next(path for path in paths if "direct_final_plain_test" in path.name).read_text())
    assert document["results"]["x"] == {"alias": "x", "acc,none": 1 / 3, "acc_stderr,none": 0.125}
    assert document["results"]["wiki"]["bits_per_byte_stderr,none"] == "N/A"
    assert document["n-samples"]["x"] == {"original": 7, "effective": 7}
    assert document["n-shot"] == {}  # nobody said how many
    table = make_table(document)
    assert "acc" in table and "0.3333" in table and "bits_per_byte" in table


def test_examples_are_those_of_the_benchmarks_sheet(tmp_path):
    """An entry under `n-shot` where the sheet has a count, none where it has not."""
    write_table(our_scores(), SCORES, tmp_path / "scores.parquet")
    sheet = tmp_path / "benchmarks.tsv"
    command = ["lm-eval", str(tmp_path / "scores.parquet"), "--output", str(tmp_path / "out")]
    command += ["--benchmarks", str(sheet)]
    sheet.write_text("benchmark\tnum_fewshot\nx\t5\nwiki\t\n")
    assert CliRunner().invoke(app, command).exit_code == 0
    path = tmp_path / "out" / "a" / "results_direct_final_plain_test.json"
    assert json.loads(path.read_text())["n-shot"] == {"x": 5}
    sheet.write_text("benchmark\tnum_fewshot\nx\t2.5\n")
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, InputError)
    assert "row 2, column 'num_fewshot', value '2.5': not a whole number" in str(refused.exception)


def test_scores_without_a_metric_are_named_and_nothing_is_written(tmp_path):
    ours = our_scores().astype({"metric": object})
    ours.loc[1, "metric"] = None
    with pytest.raises(InputError, match=r"1 of \d+ scores have no metric"):
        write_lm_eval(ours, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_checkpoints_of_one_name_have_a_file_each(tmp_path):
    """They differ in iteration or tokens only, which the file's name has where it must."""
    early = our_scores().query("model == 'a' and benchmark == 'x' and checkpoint == 's1'")
    several = [
        early,
        early.assign(tokens_b=1.0),
        early.assign(tokens_b=1.0, iteration=2),
        early.assign(checkpoint="s2"),
    ]
    write_table(pd.concat(several), SCORES, tmp_path / "scores.parquet")
    written = write_lm_eval(read_scores(tmp_path / "scores.parquet"), tmp_path / "out")
    assert len(set(written)) == 4 and sorted(path.name for path in (tmp_path / "out" / "a").iterdir()) == [
        "results_direct_s1_plain_test_iter1_0.30000000000000004B.json",
        "results_direct_s1_plain_test_iter1_1.0B.json",
        "results_direct_s1_plain_test_iter2_1.0B.json",
        "results_direct_s2_plain_test.json",
    ]


def test_models_whose_files_would_have_one_name_are_refused(tmp_path):
    ours = our_scores().replace({"model": {"a": "org__b"}})
    with pytest.raises(InputError, match="2 files of org/b and org__b would have the name org__b/results_"):
        write_lm_eval(ours, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_whose_name_leads_out_of_the_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"model '\.\.'"):
        write_lm_eval(our_scores().replace({"model": {"a": ".."}}), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_scores_without_a_value_are_named_and_nothing_is_written(tmp_path):
    ours = our_scores()
    ours.loc[9, "value"] = float("nan")
    with pytest.raises(InputError, match=r"1 of \d+ scores have no finite value, the first of org/b on x"):
        write_lm_eval(ours, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_import_without_metrics_is_exported_with_those_of_the_sheet(tmp_path):
    ours = our_scores().query("split == 'test' and benchmark == 'x'").assign(metric=None, higher_is_better=None)
    write_table(ours, SCORES, tmp_path / "scores.parquet")
    command = ["lm-eval", str(tmp_path / "scores.parquet"), "--output", str(tmp_path / "out")]
    assert isinstance(CliRunner().invoke(app, command).exception, InputError)
    (tmp_path / "b.csv").write_text("benchmark,metric,higher_is_better\nx,gap,0\n")
    assert CliRunner().invoke(app, [*command, "--benchmarks", str(tmp_path / "b.csv")]).exit_code == 0
    back = read_lm_eval(path for path in (tmp_path / "out").rglob("*.json") if path.name != LIST)
    assert set(back["metric"]) == {"gap,none"} and not back["higher_is_better"].any() and len(back) == len(ours)
