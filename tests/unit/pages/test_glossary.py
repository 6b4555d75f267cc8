"""The glossary: every entry is read, and a page explains the words it uses, each once."""

import re

from lm_validity.pages.page import Finding, Page, Section, Words, entries, glossary_text, page_document, render


def test_every_paragraph_is_an_entry():
    assert len(entries()) == glossary_text().count("\n## ") >= 15
    assert all(text.endswith(".") and "*" not in text for text in entries().values())
    words = Words()
    words.mark("The first principal component.")
    assert list(words.used) == ["Factor"]


def test_first_mentions_only_in_any_case_and_number():
    words = Words()
    marked = words.mark("Two families. A Family has a Kendall's tau; family-wise is another word.")
    assert re.findall(r">([^<]+)</a>", str(marked)) == ["families", "Kendall&#39;s tau"]
    assert list(words.used) == ["Family", "Kendall's tau"]
    assert "<a" not in words.mark("families and Kendall's tau")


def test_names_of_files_stay_escaped():
    assert str(Words().mark("<b>bias</b> & more")).startswith("&lt;b&gt;<a ")
    assert str(Words().mark("<i> & more")) == "&lt;i&gt; &amp; more"


def test_a_page_lists_the_words_it_mentions():
    page = Page(
        "a", "A", [Finding("Kendall's tau is 1.", "2 cells.")], [Section("S", finding="The Kendall's tau of S.")]
    )
    html = render(page_document(page))
    assert re.findall(r'href="#word-(\d)"', html) == ["1", "2"]
    assert re.findall(r'<div id="word-\d"><dt>([^<]+)', html) == ["Kendall&#39;s tau", "Cell"]
    assert 'id="words"' not in render(page_document(Page("a", "A", [Finding("None.")], [])))
