"""Versions and machine are plain JSON and name what ran."""

import json
import sys

import torch

from lm_validity.cells.models.provenance import git_commit, machine, versions


def test_versions_name_what_is_loaded():
    found = versions()
    assert found["torch"] == torch.__version__.partition("+")[0] or found["torch"] == torch.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))


def test_machine_is_json():
    found = machine(torch.device("cpu"))
    assert json.loads(json.dumps(found)) == found
    assert found["device"] == "cpu" and found["threads"] == torch.get_num_threads()
    commit = git_commit()
    assert commit is None or len(commit.rstrip("+")) == 40
