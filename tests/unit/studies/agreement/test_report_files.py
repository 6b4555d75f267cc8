"""What the reports write: figures and their captions, text that is no markup."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
from jinja2 import Template
from tests.unit.studies.agreement.conftest import NAMES, run, score_rows


def test_hostile_names_are_text(tmp_path):
    names = ['<script>alert("m")</script>', "it's", 'a"b', "</script><b>x"]
    summary = run(tmp_path, score_rows(names=names), models='model,family\nit\'s,"<img src=x onerror=alert(1)>"\n')
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html and "</script><b>" not in html
    assert "&lt;script&gt;alert(&#34;m&#34;)&lt;/script&gt;" in html
    assert summary["models"] == 4


def test_report_writes_every_figure_three_times(tmp_path, drawn):
    run(tmp_path, score_rows())
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    figures = [figure["name"] for section in page["sections"] for figure in section["figures"]]
    assert figures
    for name in figures:
        for suffix in ("vl.json", "svg", "pdf"):
            assert (tmp_path / "report" / "figures" / f"{name}.{suffix}").stat().st_size > 300
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "src=" not in html.split("<script", 1)[0] and "@import" not in html


def test_every_figure_has_a_caption_in_the_workflows_report(tmp_path):
    """`snakemake --report` shows the figures with captions by file name."""
    text = (Path(__file__).parents[4] / "workflow" / "report" / "agreement.rst").read_text(encoding="utf-8")
    wildcards = SimpleNamespace(wildcards=SimpleNamespace(figure="tau_by_benchmark"))
    captions = set(Template(text).make_module({"snakemake": wildcards}).captions)
    families = [score_rows(names=[f"{name}{i}" for i in NAMES]) for name in "xyz"]
    rows = pd.concat([rows.assign(value=rows["value"] * (1 - part / 1e4)) for part, rows in enumerate(families)])
    rows = rows[~((rows["model"] == "xm0") & (rows["benchmark"] == "b"))]  # a cell to complete
    models = "model,family,parameters_b,tokens_b,instruction_tuned\n"
    models += "".join(f"{n}{m},{n},{i},1,{int(n == 'x')}\n" for n in "xyz" for i, m in enumerate(NAMES, start=1))
    run(tmp_path, rows.assign(stderr=0.03), models=models, resamples=20)
    page = json.loads((tmp_path / "report" / "page.json").read_text(encoding="utf-8"))
    shown = {figure["name"] for section in page["sections"] for figure in section["figures"]}
    assert shown == captions
