"""The configuration and its plan of cells: what is refused and how."""

import contextlib
from pathlib import Path

import pytest
import yaml

from lm_validity.config.load import build_run, key_values, load_run, read_plan, render_defaults, render_yaml, validate
from lm_validity.config.sections import Configuration, Finetuning
from lm_validity.errors import InputError
from lm_validity.run.scoring import scoring_settings


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def values(**more):
    return {"name": "run", "models": "m.tsv", "benchmarks": "b.tsv", **more}


def test_defaults_are_the_published_protocol():
    settings = validate(values(), "f.yaml", Configuration).finetuning
    assert (settings.rank, settings.alpha, settings.dropout, settings.epochs) == (8, 32, 0.1, 5)
    assert (settings.effective_batch, settings.max_length, settings.weight_decay) == (8, 1024, 0.01)
    assert settings.learning_rates == ("1e-5", "2e-5", "5e-5")


@pytest.mark.parametrize(
    ("more", "problem", "hint"),
    [
        ({"finetunning": {}}, "unknown key 'finetunning'", "did you mean 'finetuning'?"),
        ({"finetuning": {"epoch": 3}}, "unknown key 'finetuning.epoch'", "did you mean 'epochs'?"),
        ({"miniature": {"seeds": 3}}, "unknown key 'miniature.seeds'", "did you mean 'seed'?"),
        ({"finetuning": {"epochs": 0}}, "key 'finetuning.epochs', value 0", "explains"),
        ({"finetuning": {"learning_rates": ["fast"]}}, "'fast' is not a number", "explains"),
        ({"finetuning": {"learning_rates": [1e-5, "1e-05"]}}, "holds a value twice", "explains"),
        ({"name": "a/b"}, "key 'name', value 'a/b'", "explains"),
        (
            {"batching": {"evaluate_model": {"benchmarks": 0}}},
            "key 'batching.evaluate_model.benchmarks', value 0",
            "explains",
        ),
        ({"evaluation": {"device": "gpu"}}, "key 'evaluation.device', value 'gpu'", "explains"),
        ({"evaluation": {"device": "cuda:one"}}, "key 'evaluation.device', value 'cuda:one'", "explains"),
        ({"epochs": 5}, "unknown key 'epochs'", "it is finetuning.epochs or bias.training.epochs"),
        ({"finetuning": {"seeds": 3}}, "a list was expected", "explains"),
        ({"finetuning": [1]}, "a mapping of keys was expected", "explains"),
        ({"name": 2024}, "a text was expected", "explains"),
        ({"finetuning": {"seeds": []}}, "at least one value was expected", "explains"),
        ({"models": None}, "key 'models' is missing", "explains"),
        ({"bias": {"experiments": {"a": {"subsamples": {50: True}}}}}, "no numbers", "write the number"),
        ({"size_classes": {"big": {"gpu_memory_gb": 0}}}, "gpu_memory_gb is 0, and the class has GPUs", "explains"),
    ],
)
def test_errors_name_the_key_and_help(more, problem, hint):
    with pytest.raises(InputError) as caught:
        validate(values(**more), "f.yaml", Configuration)
    assert caught.value.problem.startswith("f.yaml: ") and problem in caught.value.problem
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("written", "name"), [("1e-5", "1e-5"), (1e-5, "1e-5"), ("0.00002", "2e-5"), ("2.5e-04", "2.5e-4"), (0.003, "3e-3")]
)
def test_a_learning_rate_has_one_name(written, name):
    assert validate({"learning_rates": [written]}, "f", Finetuning).learning_rates == (name,)


def test_the_folder_of_all_results_is_the_configurations():
    Path("m.tsv").write_text("model\tpath\na\tresults/{run}/made/a\nb\tother/results/{run}\n")
    Path("b.tsv").write_text("benchmark\tcorpus\nletters\tmy_texts\n")
    run = build_run(values(results="scratch/of me/"), "f.yaml")
    assert run.results == Path("scratch/of me/run")
    assert run.models["a"].path == "scratch/of me/run/made/a" and run.models["a"].is_local
    assert run.models["b"].path == "other/results/run"
    assert run.benchmarks["letters"].include_path == "scratch/of me/run/corpora/letters"


DOUBLED = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 31))


SHEETS = "name: a\nmodels: m\nbenchmarks: b\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (f"name: {odd}", "")
            for odd in ("2024-13-45", "!!float x", "!!bool x", "!!int ''", "!!timestamp x", "9" * 5000)
        ),
        *((text, "") for text in ("a: &a [*a]", "[" * 3000 + "]" * 3000, DOUBLED, "? [a]\n: b", "a: *b")),
        *((text, "character") for text in ('name: "a\\x1b"', 'models: "\\0"\nname: a')),
        *((text, "there twice") for text in ("name: a\nname: b", "splits: {seed: 1, seed: 2}")),
        # YAML reads 010 as 8 and 1:30 as 90, pydantic yes as 1: none of them is what was written
        *((f"finetuning: {{epochs: {odd}}}", odd) for odd in ("010", "1:30", "1:30.5")),
        ("finetuning: {010: 3}", "010"),
        (f"{SHEETS}finetuning: {{epochs: yes}}", "'finetuning.epochs', value True"),
        (f"{SHEETS}finetuning: {{seeds: [0, on]}}", "'finetuning.seeds', value [0, True]"),
        (f"{SHEETS}reports: {{resamples: off}}", "'reports.resamples', value False"),
        (SHEETS.replace("name: a", "name: " + "ab" * 61), "at most 120"),
    ],
    ids=lambda text: text[:12],
)
def test_a_hostile_file_is_refused_by_one_line_and_no_value_is_taken_for_another(text, words):
    Path("hostile.yaml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_run("hostile.yaml")
    assert str(caught.value).startswith("hostile.yaml") and "\n" not in str(caught.value)
    assert words in caught.value.problem


def test_rendered_yaml_reads_back_to_the_same_values():
    finetuning = {"learning_rates": [3e-4], "max_length": 9}
    more = values(finetuning=finetuning, splits={"allow_overlap": ["a", "b"]})
    configuration = validate(more, "f", Configuration)
    assert validate(yaml.safe_load(render_yaml(configuration)), "g", Configuration) == configuration


def write_sheets(benchmarks: str, models: str = "model\tpath\na\torg/a\n") -> None:
    Path("m.tsv").write_text(models)
    Path("b.tsv").write_text(benchmarks)


def test_fewshot_counts_and_mutual_information_of_a_benchmark():
    header = "benchmark\toutput_type\tstudies\tnum_fewshot\tmutual_information\n"
    write_sheets(header + "x\t\tsignal\t5\t1\ny\t\tagreement\t\t\n")
    run = build_run(values(studies=["agreement", "signal"]), "f.yaml")
    assert (run.benchmarks["x"].num_fewshot, run.benchmarks["x"].mutual_information) == (5, True)
    assert (run.benchmarks["y"].num_fewshot, run.benchmarks["y"].mutual_information) == (0, False)
    settings = scoring_settings(run, "a", "x", "plain")
    assert settings["num_fewshot"] == 5 and settings["mutual_information"] is True
    assert not {"num_fewshot", "mutual_information"} & set(scoring_settings(run, "a", "y", "plain"))
    wrong = {
        "x\t\tsignal\tfive\t\n": "row 2, column 'num_fewshot', value 'five': not a whole number",
        "x\t\tsignal\t-1\t\n": "value '-1': should be greater than or equal to 0",
        "x\tloglikelihood_rolling\tsignal\t5\t\n": "a perplexity corpus has no examples",
        "x\tgenerate_until\tsignal\t\t1\n": "generate_until has no choices",
        "x\t\tagreement,signal\t5\t\n": "'x', column 'num_fewshot', value 5: the agreement study is zero-shot",
    }
    for row, problem in wrong.items():
        write_sheets(header + row)
        with pytest.raises(InputError) as caught:
            build_run(values(studies=["agreement", "signal"]), "f.yaml")
        assert problem in caught.value.problem
    # in a run without the agreement study it is a benchmark like any other
    assert build_run(values(studies=["signal"]), "f.yaml").benchmarks["x"].num_fewshot == 5


def test_an_instruction_tuned_model_is_in_one_study_of_two():
    both, models = {"studies": ["agreement", "signal"]}, "model\tpath\tinstruction_tuned\tstudies\n"
    for studies in ("", "agreement, signal"):
        write_sheets("benchmark\nx\n", f"{models}base\torg/a\t0\t\nchatty\torg/b\t1\t{studies}\n")
        with pytest.raises(InputError, match=r"m\.tsv: model 'chatty', column 'studies'") as caught:
            build_run(values(**both), "f.yaml")
        assert "two rows in the models sheet, or name one study" in caught.value.hint
    # one study in the configuration, one prompt, or two rows
    assert build_run(values(studies=["agreement"]), "f.yaml") and build_run(values(studies=["signal"]), "f.yaml")
    assert build_run(values(**both, evaluation={"instruction_tuned_prompts": ["plain"]}), "f.yaml")
    rows = "chatty\torg/b\t1\tagreement\nchatty-young\torg/b\t1\tsignal\n"
    write_sheets("benchmark\nx\n", models + rows)
    assert len(build_run(values(**both), "f.yaml").models) == 2


def test_tokens_of_checkpoints_follow_from_a_batch_ramp():
    Path("c.tsv").write_text(
        "checkpoint\titeration\ttokens_b\tsubfolder\nx\t4000\t\tx\ny\t5\t7\ty\nfinal\t54000\t\tz\n"
    )
    write_sheets("benchmark\nx\n", "model\tpath\tcheckpoints\tbatch_ramp\na\torg/a\tc.tsv\te2lm\n")
    model = build_run(values(), "f").models["a"]
    assert [point.checkpoint for point in model.checkpoints] == ["x", "y", "final"]
    assert [point.tokens_b for point in model.checkpoints] == pytest.approx([4.1943, 7, 197.6036], abs=1e-4)
    assert model.tokens_b == model.checkpoints[-1].tokens_b and model.checkpoints[-1].subfolder == "z"
    write_sheets("benchmark\nx\n", "model\tpath\tcheckpoints\tbatch_ramp\na\torg/a\tc.tsv\tmine\n")
    with pytest.raises(InputError, match="column 'batch_ramp', value 'mine'"):
        build_run(values(), "f")


def test_a_configured_context_length_makes_cells_of_its_own(tmp_path, monkeypatch):
    """Cells from when it was not held to the model's own limit are not taken for these."""
    monkeypatch.chdir(tmp_path)
    write_sheets("benchmark\nx\n")
    settings = [
        scoring_settings(build_run(values(evaluation=evaluation), "f.yaml"), "a", "x", "plain")
        for evaluation in ({}, {"max_length": 512})
    ]
    assert "limited_to" not in settings[0] and settings[0]["evaluation_max_length"] is None
    assert settings[1]["limited_to"] and settings[1]["evaluation_max_length"] == 512


def test_fields_that_are_no_keys_have_one_value():
    """What a run writes down is without them."""
    section = {"experiments": {"head": {}}, "paper": True}
    read = validate(values(studies=["agreement"], bias=section, miniature={}), "f", Configuration)
    assert validate(key_values(read), "f", Configuration) == read
    assert "learning_rates:" in render_defaults() and "alpha:" not in render_defaults()
    for change, key in (
        ({"finetuning": {"alpha": 16}}, "finetuning.alpha"),
        ({"miniature": {"format_share": 0.3}}, "miniature.format_share"),
        ({"bias": section | {"seeds": "varied"}}, "bias.seeds"),
        ({"bias": {"training": {"pooler": "none"}}}, "bias.training.pooler"),
        ({"reports": {"signal": {"ties": "average"}}}, "reports.signal"),
        ({"batch_ramps": {}}, "batch_ramps"),
    ):
        with pytest.raises(InputError, match=f"key '{key}'"):
            validate(values(**change), "f", Configuration)


@pytest.mark.parametrize(("checkpoints", "refused"), [("", True), ("steps.tsv", False)])
def test_curves_of_final_models_only_are_refused_before_the_first_job(checkpoints, refused):
    Path("steps.tsv").write_text("checkpoint\titeration\nstep1\t1\n")
    write_sheets("benchmark\nx\n", f"model\tpath\tcheckpoints\na\torg/a\t{checkpoints}\n")
    Path("run.yaml").write_text("{name: run, studies: [signal], models: m.tsv, benchmarks: b.tsv}")
    expected = pytest.raises(InputError, match="no model of the study signal has a checkpoint beside its final one")
    with expected if refused else contextlib.nullcontext():
        load_run("run.yaml")


MODELS, BENCHMARKS = ["m1", "m2", "m3", "m4"], ["x", "y"]
HEADER = "model\tbenchmark\tround\treason\tprobability\tseed\n"
WHOLE = HEADER + "".join(f"{m}\t{b}\t1\tblock\t0.5\t0\n" for m in MODELS for b in BENCHMARKS)


def plan(text) -> Path:
    path = Path("plan.tsv")
    path.write_text(text)
    return path


def test_a_plan_is_read_by_model_and_benchmark():
    found = read_plan(plan(WHOLE), MODELS, BENCHMARKS)
    assert list(found)[:3] == [("m1", "x"), ("m1", "y"), ("m2", "x")]
    assert (found["m1", "x"].round, found["m1", "x"].probability, found["m1", "x"].seed) == (1, 0.5, 0)


def test_two_columns_are_enough_for_a_list_of_ones_own():
    text = "model\tbenchmark\n" + "".join(f"{m}\t{b}\n" for m in MODELS for b in BENCHMARKS)
    found = read_plan(plan(text), MODELS, BENCHMARKS)
    assert len(found) == 8 and found["m4", "y"].round == 1 and found["m4", "y"].probability is None


@pytest.mark.parametrize(
    ("line", "problem", "hint"),
    [
        ("m5\tx\t1\t\t\t\n", r"plan\.tsv, row 10, column 'model', value 'm5'", "the plan may name m1, m2"),
        ("m1\tz\t1\t\t\t\n", r"row 10, column 'benchmark', value 'z'", "the plan may name x, y"),
        ("m1\tx\t2\t\t\t\n", r"row 10, column 'model', value 'm1', column 'benchmark', value 'x'.*row 2", "its own id"),
        ("m1\tx\t1\t\t0\t\n", r"row 10, column 'probability', value '0'", "leave it empty"),
        ("m1\tx\t1\t\t1.5\t\n", r"row 10, column 'probability', value '1\.5'", "leave it empty"),
        ("m1\tx\t0\t\t\t\n", r"row 10, column 'round', value '0'", "leave it empty"),
    ],
)
def test_a_bad_row_has_file_row_and_hint(line, problem, hint):
    with pytest.raises(InputError, match=problem) as caught:
        read_plan(plan(WHOLE + line), MODELS, BENCHMARKS)
    assert hint in caught.value.hint


def test_a_benchmark_without_a_block_is_refused():
    text = "".join(line for line in WHOLE.splitlines(True) if not line.startswith(("m1\ty", "m2\ty")))
    with pytest.raises(InputError, match=r"plan\.tsv: benchmark 'y' is planned for 2 models") as caught:
        read_plan(plan(text), MODELS, BENCHMARKS)
    assert "add rows" in caught.value.hint


def test_a_plan_that_is_not_written_yet_names_its_command():
    with pytest.raises(InputError, match=r"no such plan") as caught:
        read_plan("plan.tsv", MODELS, BENCHMARKS)
    assert "lm-validity plan" in caught.value.hint


def test_a_plan_without_the_agreement_study_is_refused():
    with pytest.raises(InputError, match="'plan' is of the study agreement"):
        build_run({"name": "run", "studies": ["signal"], "models": "m", "benchmarks": "b", "plan": "p"}, "f.yaml")
