"""The train-before-test authors' all_results.json -> scores.

Layout: `{train_before_test | direct_eval}` and the same with `_stderr`, each benchmark -> model id ->
number. A standard error, or all of a benchmark's or of a block's, may be the string "N/A". Scores of one of the two
protocols are enough.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.errors import InputError
from lm_validity.tables.formats.json_values import finite, read_json_file, score
from lm_validity.tables.formats.score_files import labelled, typed_scores
from lm_validity.tables.schema import check_values

_PROTOCOLS = {"direct": "direct_eval", "train_before_test": "train_before_test"}
_UNKNOWN = "remove the entry where the score is unknown."


def read_lm_harmony(path: str | Path) -> pd.DataFrame:
    """One row per (model, benchmark, protocol), with the columns of SCORES.

    Metric, direction and item count are not in the file: null, to be joined from the benchmarks sheet. So
    are the prompt (plain or chat, whichever was better on validation) and the seed.

    Raises InputError for a file that is not such JSON and for a score that is not a finite number.
    """
    path = Path(path)
    results = _read_results(path)
    rows = []
    for protocol, block in _PROTOCOLS.items():
        errors = _object(results.get(f"{block}_stderr"))
        for benchmark, scores in results.get(block, {}).items():
            errors_here = _object(errors.get(benchmark))
            for model, value in scores.items():
                rows.append(
                    {
                        "model": model,
                        "checkpoint": "final",
                        "benchmark": benchmark,
                        "protocol": protocol,
                        "split": "test",
                        "value": score(value, f"{path}, {block}, {benchmark}, {model}", _UNKNOWN),
                        "stderr": finite(errors_here.get(model)),
                        "selected": True,
                        "source": "lm-harmony",
                    }
                )
    frame = typed_scores(pd.DataFrame(rows))
    check_values(labelled(frame), path)
    return frame.sort_values(["protocol", "benchmark", "model"], ignore_index=True)


def _read_results(path: Path) -> dict[str, Any]:
    results = read_json_file(path, "the authors' notebooks/all_results.json is meant.")
    given = [block for block in _PROTOCOLS.values() if isinstance(results, dict) and block in results]
    for block in given or ("direct_eval",):
        found = results.get(block) if given else None
        if not isinstance(found, dict) or not all(isinstance(scores, dict) for scores in found.values()):
            raise InputError(
                f"{path}: no object {block!r} of benchmarks with scores by model.",
                "is it the authors' notebooks/all_results.json?",
            )
    if not any(scores for block in given for scores in results[block].values()):
        raise InputError(f"{path}: no scores in it.", "is it the authors' notebooks/all_results.json?")
    return results


def _object(value: object) -> dict[str, Any]:
    """Standard errors by name; none where they are unknown (null, or a text such as "N/A")."""
    return value if isinstance(value, dict) else {}
