"""What the reports write: figures and their captions, text that is no markup."""

from tests.unit.studies.agreement.conftest import run, score_rows

from lm_validity.site.run import mark_unfinished


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
