"""Which configuration a command reads where none is named."""

from pathlib import Path

from lm_validity.cli.options import DEMO, default_configfile
from lm_validity.template.folder import make_study

ROOT = Path(__file__).resolve().parents[3]


def test_it_is_the_one_that_snakemake_reads_there(tmp_path):
    make_study(tmp_path / "study")
    assert default_configfile(tmp_path / "study") == Path("study.yaml")
    assert default_configfile(ROOT) == DEMO and default_configfile(tmp_path) == DEMO
    (tmp_path / "Snakefile").write_text('configfile: "of_another_workflow.yaml"\n')
    assert default_configfile(tmp_path) == DEMO
