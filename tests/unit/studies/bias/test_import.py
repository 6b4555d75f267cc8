"""The importer of accuracies: rounding, the author's folders, and bad values named by row, trial and value."""

import pandas as pd
import pytest

from lm_validity.errors import InputError
from lm_validity.studies.bias.trials import read_pretrain_on_test
from lm_validity.tables.schema import TRIALS

HEADER = "experiment,lm,m,n,task,subsample,base,extra,test,majority\n"


def read(tmp_path, *lines, header=HEADER):
    path = tmp_path / "accuracies.csv"
    path.write_text(header + "".join(f"{line}\n" for line in lines))
    return read_pretrain_on_test(path)


def test_counts_are_rounded_and_an_empty_accuracy_leaves_its_arm_out(tmp_path):
    """Truncation would make 28 of 100 · 0.29. The share of the majority tells test sets apart."""
    table = read(tmp_path, "main,bert,50,100,trec,1,0.29,0.57,0.58,0.3", "main,gpt2,50,4,trec,1,,0.25,1,0.75")
    assert table["correct"].tolist() == [29, 57, 58, 1, 4] and table["total"].tolist() == [100] * 3 + [4] * 2
    assert table["arm"].tolist() == ["base", "extra", "test", "extra", "test"] and table["test_hash"].nunique() == 2
    assert list(table.columns) == TRIALS.names


def test_the_authors_folders(tmp_path):
    """Experiment, m, n, language model and task are in a file's path, and a row is a subsample."""
    rows = ["0.5,0.25,1,0.5", "0,0.25,0.75,0.5"]

    def write(place: str) -> None:
        folder = tmp_path / "analysis" / place
        folder.mkdir(parents=True)
        (folder / "accuracies.csv").write_text("\n".join(["base,extra,test,majority", *rows]))

    write("accuracies_paper/m50/n4/bert/trec")
    write("two/accuracies/m50/n4/gpt2/emo")
    trials = ("paper,bert,50,4,trec", "two,gpt2,50,4,emo")
    expected = read(tmp_path, *(f"{key},{number},{row}" for key in trials for number, row in enumerate(rows, 1)))
    pd.testing.assert_frame_equal(read_pretrain_on_test(tmp_path / "analysis"), expected)
    one = read_pretrain_on_test(tmp_path / "analysis/two/accuracies/m50/n4/gpt2/emo/accuracies.csv")
    assert one["experiment"].tolist() == ["two"] * 6
    write("accuracies_two/m50/n4/gpt2/emo")
    (tmp_path / "empty").mkdir()
    twice = r"two/accuracies.* line 2 .*experiment two.* on line 2 of .*accuracies_two.* already"
    for folder, problem in (("analysis", twice), ("empty", r"empty: no accuracies\.csv")):
        with pytest.raises(InputError, match=problem):
            read_pretrain_on_test(tmp_path / folder)


@pytest.mark.parametrize(
    "line, message",
    [
        ("main,bert,50,100,trec,1,0.295,0.5,0.5,0.3", "base is '0.295', not a multiple of 1/100"),
        ("main,bert,50,100,trec,1,29,0.5,0.5,0.3", "base is '29', not between 0 and 1"),
        ("main,bert,50,100,trec,1,0.5,high,0.5,0.3", "extra is 'high', not a number"),
        ("main,bert,50,ten,trec,1,0.5,0.5,0.5,0.3", "n is 'ten', not a number"),
        ("main,bert,50,10.5,trec,1,0.5,0.5,0.5,0.3", "n is '10.5', not a whole number"),
        ("main,bert,50,1e30,trec,1,0.5,0.5,0.5,0.3", "n is '1e30', not a whole number from 1 to 2147483647"),
        ("main,bert,50,10,trec,2147483648,0.5,0.5,0.5,0.3", "subsample is '2147483648', not a whole number from 0 to"),
        ("main,,50,10,trec,1,0.5,0.5,0.5,0.3", "column 'lm' is empty"),
    ],
)
def test_bad_values_are_named(tmp_path, line, message):
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path, "main,bert,50,10,emo,1,0.5,0.5,0.5,0.3", line)
    assert "row 3 (" in caught.value.problem


def test_a_trial_that_is_there_twice_is_named_with_both_lines(tmp_path):
    lines = ["main,bert,50,4,trec,1,0.5,,1,0.5", "main,bert,50,4,trec,2,0.5,0.25,1,0.5"]
    key = "experiment main, language_model bert, m 50, n 4, subsample 1"
    problem = rf"line 4 \(task 'trec'\): its trial \({key}\) has test on line 2 of .* already"
    with pytest.raises(InputError, match=problem):
        read(tmp_path, *lines, "main,bert,50.0,4,trec,01,,0.25,0.75,0.5")
    assert len(read(tmp_path, *lines, "main,bert,50,4,trec,1,,0.25,,0.5")) == 6  # arms on two lines
