"""What the reports write: figures and their captions, text that is no markup."""

import re

from tests.unit.studies.agreement.conftest import run, score_rows

from lm_validity.site.partial import lead_to_report, mark_unfinished


def test_hostile_names_are_text(tmp_path):
    names = ['<script>alert("m")</script>', "it's", 'a"b', "</script><b>x"]
    found, _ = run(tmp_path, score_rows(names=names), models='model,family\nit\'s,"<img src=x onerror=alert(1)>"\n')
    html = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html and "<img src=x" not in html and "</script><b>" not in html
    assert "&lt;script&gt;alert(&#34;m&#34;)&lt;/script&gt;" in html
    assert found.value("models") == 4


def test_an_unfinished_runs_report_says_so_on_its_own_page(tmp_path):
    run(tmp_path, score_rows())
    page = tmp_path / "report" / "index.html"
    assert "evaluate_model m9" not in page.read_text()
    mark_unfinished(tmp_path / "report", ["evaluate_model m9 <b>"])
    assert "evaluate_model m9 &lt;b&gt;" in page.read_text()


def test_pages_of_an_unfinished_run_lead_to_the_finished_report(tmp_path):
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "index.html").write_text("finished")
    pages = [tmp_path / "partial" / name / "index.html" for name in ("report", "report/cards/maps", "reports/bias")]
    for page in pages:
        page.parent.mkdir(parents=True)
        page.write_text("not complete")
    lead_to_report(tmp_path)
    for page in pages:
        (link,) = set(re.findall(r'(?:href="|url=)([^"]+)"', page.read_text()))
        assert (page.parent / link).read_text() == "finished" and "not complete" not in page.read_text()
