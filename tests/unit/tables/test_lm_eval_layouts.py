"""lm-eval's result files: layouts of several of its versions; our tables written so and read back."""

import json

import pandas as pd
import pytest
from tests.unit.tables.conftest import put, read_files

from lm_validity.errors import InputError
from lm_validity.tables.formats.score_files import ImportLog, ImportOptions
from lm_validity.tables.schema import SCORES


def read_lm_eval(paths):
    """The scores of lm-eval's files, none of which may be left out."""
    return read_files(paths, ImportOptions(), ImportLog(strict=True))


_EASY = {"acc,none": 0.5, "acc_stderr,none": 0.01}
VERSION_0_3 = {
    "results": {
        "arc_easy": {"acc": 0.5, "acc_stderr": 0.01, "acc_norm": 0.4, "acc_norm_stderr": 0.02},
        "wikitext": {"word_perplexity": 37.4, "byte_perplexity": 1.97, "bits_per_byte": 0.98},
    },
    "versions": {"arc_easy": 0, "wikitext": 1},
    "config": {"model": "hf-causal", "model_args": "pretrained=gpt2,revision=main", "num_fewshot": 0, "device": "cpu"},
}
_GROUP = {"acc,none": 0.6, "acc_stderr,none": 0.02, "alias": "group"}
VERSION_0_4_0 = {
    "results": {"group": _GROUP, "arc_easy": _EASY | {"alias": " - arc_easy"}},
    "groups": {"group": _GROUP},
    "configs": {"arc_easy": {"task": "arc_easy"}},
    "versions": {"arc_easy": 1.0},
    "n-shot": {"arc_easy": 0},
    "config": {"model": "hf", "model_args": "pretrained=gpt2", "batch_size": "1"},
    "git_hash": "abc",
}
VERSION_0_4_13 = {
    "results": {
        "arc_easy": {"name": "arc_easy", "alias": "arc_easy", "sample_len": 9} | _EASY | {"acc_norm,none": 0.45},
        "wiki": {"bits_per_byte,none": 0.9, "bits_per_byte_stderr,none": "N/A"},
        "nq_open": {"exact_match,remove_whitespace": 0.1, "exact_match_stderr,remove_whitespace": 0.0},
        "group": {"alias": "group"} | _EASY,
    },
    "group_subtasks": {"arc_easy": [], "nq_open": [], "group": ["arc_easy"]},
    "higher_is_better": {"arc_easy": {"acc": True}, "wiki": {"bits_per_byte": False}, "group": {"acc": True}},
    "n-samples": {"arc_easy": {"original": 9, "effective": 9.0}},
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
    first = put(tmp_path / "a.json", VERSION_0_4_13)
    other = put(tmp_path / "b.json", VERSION_0_4_13 | {"model_name": "other", "chat_template": "{{ x }}"})
    frame = read_lm_eval([first, other])
    assert list(frame.columns) == SCORES.names
    assert set(frame["model"]) == {"gpt2", "other"} and set(frame["prompt"]) == {"plain", "chat"}
    assert len(read_lm_eval([first, first])) == 4  # one file, named twice
    again = put(tmp_path / "again.json", VERSION_0_4_13)
    with pytest.raises(InputError, match="4 scores also in"):
        read_lm_eval([first, again])


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("n-samples", {"arc_easy": 5}, "lm-eval"),
        ("higher_is_better", {"arc_easy": True}, "lm-eval"),
        ("group_subtasks", [1], "lm-eval"),
        ("config", "hf", "lm-eval"),
        ("n-samples", {"arc_easy": {"effective": 100.5}}, "'n_items': 100.5"),
        ("n-samples", {"arc_easy": {"effective": "100"}}, "lm-eval"),
        ("higher_is_better", {"arc_easy": {"acc": "yes"}}, "arc_easy, acc,none, 'higher_is_better': 'yes'"),
        ("results", {"arc_easy": {"acc,none": 10**400}}, "1 score is a finite number"),
    ],
)
def test_a_part_or_a_value_of_the_wrong_type_is_named_before_a_table_is_written(section, value, said, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps(VERSION_0_4_13 | {section: value}))
    with pytest.raises(InputError) as error:
        read_lm_eval([path])
    assert str(error.value).startswith(str(path)) and said in str(error.value)
