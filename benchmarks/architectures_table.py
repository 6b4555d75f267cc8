"""The page docs/reference/which_models_work.md from what `architectures.py` found."""

import json
from pathlib import Path

import torch
import transformers
from tiny_architectures import kinds

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "which_models_work.md"
EXACT = 2e-5


def write_table(results: Path) -> None:
    """Write the page. Raises nothing: an architecture that failed is a line of it."""
    found = sorted((json.loads(line) for line in results.read_text().splitlines()), key=lambda one: one["type"])
    PAGE.write_text("\n".join(page(found)) + "\n", encoding="utf-8")
    print(PAGE)


def page(found: list[dict]) -> list[str]:
    """The page's lines."""
    tried = [one for one in found if "failed" not in one]
    scored = [one for one in tried if "error" in one["scoring"] and "ways" in one["scoring"]]
    exact = [one for one in scored if one["scoring"]["error"] <= EXACT]
    shared = [one for one in exact if {"packed", "cached"} & set(one["scoring"]["ways"])]
    rows = [one for one in exact if one["scoring"]["ways"] == ["rows"]]
    other = [one for one in exact if one not in shared and one not in rows]
    off = [one for one in scored if one not in exact]
    trained = [one for one in tried if "losses" in one["lora"]]
    whole = [one for one in trained if one["lora"]["falls"] and one["lora"]["restored"] and one["lora"]["resumed"]]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return [
        "# Which models work",
        "",
        f"transformers knows {len(kinds())} types of causal language models. This page says which of them this project",
        f"can score and fine-tune. {len(found)} were tried, each as a tiny random model on a CPU in float32, through",
        f"the code that computes cells ({versions}).",
        "`benchmarks/architectures.py` makes the figures and this page.",
        "",
        "A tiny random model cannot show two things: whether the weights on the hub fit transformers' code, and what",
        "16 bits do to the numbers. Before its first use the scorer tries each way on the real model, and leaves out a",
        "way that disagrees with lm-eval. Types that can be encoders or decoders were configured as decoders.",
        "A hub model whose `config.json` names an encoder, an encoder with a decoder, or a classifier is refused",
        "when it is fetched.",
        "",
        "| | architectures |",
        "|---|---|",
        f"| tried | {len(found)} |",
        f"| made and run | {len(tried)} |",
        f"| scores exact, contexts shared between choices | {len(shared)} |",
        f"| scores exact, each choice in a row of its own | {len(rows)} |",
        f"| scores exact by lm-eval's own code | {len(other)} |",
        f"| scores differ from a plain pass | {len(off)} |",
        f"| refused or failed while scored | {len(tried) - len(scored)} |",
        f"| LoRA: loss falls, base restored to the bit, resume to the bit | {len(whole)} |",
        f"| LoRA trains, but one of these three does not hold | {len(trained) - len(whole)} |",
        f"| LoRA refused or failed | {len(tried) - len(trained)} |",
        "",
        f"*Exact* means at most {EXACT:g} nats per token away from one plain forward pass per request. *Shared*:",
        "a question is computed once for all its choices. *Rows*: each choice is computed with its whole question.",
        "*LoRA* trains small added matrices instead of all weights.",
        "",
        *_list("Contexts shared, exact", shared),
        *_list("Rows, exact", rows),
        *_list("lm-eval's own code, exact", other),
        *_reasons(
            "Scores that differ from a plain pass", [(one, f"{one['scoring']['error']:.2g} nats") for one in off]
        ),
        *_reasons(
            "Refused or failed while scored",
            [(one, _why(one["scoring"])) for one in tried if one not in scored],
        ),
        *_reasons(
            "LoRA: what does not hold",
            [(one, _missing(one["lora"])) for one in trained if one not in whole],
        ),
        *_reasons("LoRA refused or failed", [(one, _why(one["lora"])) for one in tried if one not in trained]),
        *_adapted(trained),
        "The types under the next heading say nothing about the models. The small values do not fit an architecture's",
        "own rules, a library is missing here, or no answer came in 150 s.",
        "",
        *_reasons("Not made", [(one, one["failed"]) for one in found if "failed" in one]),
    ]


def _list(title: str, found: list[dict]) -> list[str]:
    return [f"## {title} ({len(found)})", "", ", ".join(f"`{one['type']}`" for one in found) or "None.", ""]


def _reasons(title: str, found: list[tuple[dict, str]]) -> list[str]:
    lines = [f"| `{one['type']}` | {reason.replace('|', '/')} |" for one, reason in found]
    table = ["| model type | reason |", "|---|---|", *lines] if lines else ["None."]
    return [f"## {title} ({len(found)})", "", *table, ""]


def _why(found: dict) -> str:
    return found.get("refused") or found.get("error") or "no reason was given"


def _missing(lora: dict) -> str:
    words = {"falls": "the loss does not fall", "restored": "the base is not restored", "resumed": "resume differs"}
    return ", ".join(text for key, text in words.items() if not lora[key])


def _adapted(trained: list[dict]) -> list[str]:
    partly = [one for one in trained if one["lora"]["share"] < 0.9]
    return _reasons(
        "Less than nine tenths of the weights adapted",
        [(one, f"{one['lora']['share']:.0%}: {', '.join(one['lora']['adapters'])}") for one in partly],
    )
