"""Peaks of rehearsals at full width, of known shapes of several kinds; test_stored_peaks.py holds the code to them.

python tests/golden/rehearsed_peaks.py [HUB_ID...]     # renews the record, of these models or of all in it
"""

import sys
from pathlib import Path

from lm_validity.cells.rehearsal.rehearse import rehearse
from lm_validity.files import read_json, write_json
from lm_validity.run.rehearsals import Rehearsal, RehearsalInput, known_shapes

RECORD = Path(__file__).with_suffix(".json")
SETTINGS = {
    "dtype": "bfloat16",
    "batch_size": 32,
    "scorer": "auto",
    "max_length": None,
    "trains": True,
    "rolls": True,
    "writes": True,
    "effective_batch": 8,
    "micro_batch": 8,
    "rank": 8,
    "loss": "all",
    "target_modules": "all-linear",
    "training_tokens": 1024,
}


def ask(model: str) -> Rehearsal:
    """The rehearsal of a known shape under the default settings."""
    return rehearse(model, RehearsalInput(known_shapes()[model], SETTINGS, False))


def peaks(found: Rehearsal) -> dict:
    """What is stored of it, in bytes."""
    by_rows = {name: {str(rows): round(peak) for rows, peak in getattr(found, name).items()} for name in KINDS}
    return {"scoring": round(found.scoring), "one_text": round(found.one_text)} | by_rows


KINDS = ("training", "checkpointed")

if __name__ == "__main__":
    record = read_json(RECORD) if RECORD.is_file() else {}
    for name in sys.argv[1:] or list(record):
        record[name] = peaks(ask(name))
        write_json(RECORD, record)
        print(name, record[name])
