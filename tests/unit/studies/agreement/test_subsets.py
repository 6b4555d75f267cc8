"""Rankings by some of the benchmarks against the others, in one sentence."""

import json

import numpy as np
import pytest
from tests.unit.studies.agreement.conftest import DIRECT, run, score_rows

MODELS = [f"m{i:02}" for i in range(16)]


def told(tmp_path, benchmarks: int, noise: float) -> tuple[dict, list[str]]:
    """What the summary says about subsets, and the finding about one benchmark picked at random."""
    rng = np.random.default_rng(0)
    table = {f"b{i}": list(np.linspace(0.4, 0.6, 16) + rng.normal(0, noise, 16)) for i in range(benchmarks)}
    sheet = "benchmark,category,metric,higher_is_better\n" + "".join(f"{name},x,acc,1\n" for name in table)
    models = "model,family\n" + "".join(f"{model},{model}\n" for model in MODELS)
    summary = run(tmp_path, score_rows({DIRECT: table}, MODELS), models, sheet)
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    said = [finding["sentence"] for finding in page["findings"] if "picked at random" in finding["sentence"]]
    return summary["subsets"].get(DIRECT), said


def test_one_benchmark_is_not_held_against_itself(tmp_path):
    assert told(tmp_path, 1, 0.05)[1] == []


@pytest.mark.parametrize(("noise", "named"), [(0.02, 3), (0.1, None)])
def test_a_number_of_benchmarks_is_named_only_where_it_tells_nearly_all(tmp_path, noise, named):
    """The first below half of them whose tau with the remaining ones is 0.9: with few others left tau falls."""
    subsets, (sentence,) = told(tmp_path, 8, noise)
    enough = [size for size, tau in zip(subsets["sizes"][1:4], subsets["others_mean"][1:4], strict=True) if tau >= 0.9]
    assert (enough or [None])[0] == named
    assert ("remaining" in sentence) == bool(enough)
    if enough:
        tau = subsets["others_mean"][named - 1]
        assert sentence.endswith(f"For {named} benchmarks and the remaining ones it is {tau:.2f}.")
