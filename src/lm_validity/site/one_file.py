"""A site as one file, which can be mailed: its first page with all others inside."""

import json
import re
from functools import partial
from pathlib import Path

from lm_validity.files import write_text
from lm_validity.pages.page import asset, deflated

_DATA = re.compile(r'<div id="data" hidden data-source="([^"]+)"></div>')
_LINK = re.compile(r'<a\b([^>]*?)\shref="(?!#|[a-z]+:)([^"#]+)(?:#[^"]*)?"', re.IGNORECASE)
_LAST = "</body>"
STYLE, SCRIPT, ROUTER = "\x01STYLE\x01", "\x01SCRIPT\x01", "\x01ROUTER\x01"


def into_one_file(site: Path) -> None:
    """Put all pages of a finished site, and what their folds hold, into its `index.html`.

    The folder keeps its other files. In the one file a link to a page shows that page; a link to any other file (a
    table, a figure) is plain text, since that file does not travel. Without script the first page can be read.
    """
    paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("index.html"))
    pages = {}
    for path in paths:
        html = (site / path).read_text(encoding="utf-8")
        if data := _DATA.search(html):
            folder = (site / path).parent
            held = _text_of(folder / data[1])
            html = html.replace(data[0], f'<div id="data" hidden></div><script>{held}</script>', 1)
        pages[path] = _LINK.sub(partial(_kept, page_of_link=path, pages=set(paths)), html)
    router = asset("one_file.js")
    ending = f"<script>{ROUTER}</script>\n{_LAST}"
    site_of = {
        "style": deflated(asset("page.css")),
        "script": deflated(asset("page.js")),
        "router": deflated(router),
        "pages": {path: deflated(_shortened(html).replace(_LAST, ending, 1)) for path, html in pages.items()},
    }
    held_pages = f'<script type="application/json" id="site">{json.dumps(site_of, separators=(",", ":"))}</script>'
    document = f"{held_pages}\n<script>{router}</script>\n{_LAST}"
    write_text(site / "index.html", pages["index.html"].replace(_LAST, document, 1))


def _text_of(path: Path) -> str:
    """The text of a file beside a page; nothing where the page has no folds that need it."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _shortened(html: str) -> str:
    """The page with marks in place of the style and script that all pages share."""
    return html.replace(asset("page.css"), STYLE, 1).replace(asset("page.js"), SCRIPT, 1)


def _kept(link: re.Match[str], page_of_link: str, pages: set[str]) -> str:
    """The link where it leads to a page of the site, else the same element without an address."""
    parts = [*page_of_link.split("/")[:-1]]
    for part in link[2].split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return link[0] if "/".join(parts) in pages else f"<a{link[1]}"
