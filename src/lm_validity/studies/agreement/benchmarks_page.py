"""What the page shows of how scores came about: sampled runs, seeds, the prompts that were chosen, and adapters."""

import pandas as pd

from lm_validity.pages import figures
from lm_validity.pages.page import Part, Section, Table
from lm_validity.studies.agreement.data import Data
from lm_validity.studies.agreement.intervals import Value
from lm_validity.studies.agreement.score_matrix import ScoreMatrix
from lm_validity.studies.agreement.wording import plotted
from lm_validity.tables.schema import PROTOCOLS
from lm_validity.words import UNDER, count, decimal


def sampled_runs(data: Data) -> Part:
    """How far scores move between sampled runs, and what one run or the best of them would have said."""
    frame = pd.DataFrame(
        {"benchmark": name, "protocol": figures.PROTOCOL_LABELS[protocol], **vars(noise)}
        for (protocol, name), noise in data.matrix.sampling.items()
    )
    if frame.empty:
        return Part({})
    widest = frame.loc[frame["spread"].idxmax()]
    section = Section(
        "What would another run have said?",
        hint="the noise of sampled answers",
        finding=f"Between two runs of one model, its score on {widest['benchmark']} moves by "
        f"{widest['spread']:.3f} (standard deviation), the most of {count(len(frame), 'benchmark')}.",
        explanation="Answers were sampled several times, and each score is the mean of its runs. Its standard error is "
        "that for other items and other runs. A single run would have the error of the column beside it, of which "
        "sampling is the share given. The best of a model's runs lies above its mean by luck alone.",
        tables=[
            Table(
                "sampled_runs",
                "Noise between runs of one model",
                frame,
                formats=dict.fromkeys(("spread", "one_run", "luck"), ".3f") | {"share": ".0%", "falls": ".0%"},
                labels={
                    "fewest": "fewest runs",
                    "most": "most runs",
                    "spread": "standard deviation between runs",
                    "one_run": "standard error of one run",
                    "share": "share of sampling in its square",
                    "luck": "best run above the mean",
                    "falls": "pairs of runs that fall by more than a point",
                },
            )
        ],
    )
    return Part({}, section)


def prompts_chosen(choices: pd.DataFrame | None, matrix: ScoreMatrix) -> Part:
    """The choices as a table; nothing where no model had two prompts."""
    if choices is None or choices.empty:
        return Part({})
    labels = dict(zip(matrix.models, matrix.labels, strict=True))
    chat = {p: choices.loc[choices["protocol"] == p, "chosen"] == "chat" for p in PROTOCOLS}
    parts = [
        f"for {chat_choices.sum()} of {len(chat_choices)} choices {UNDER[p]}"
        for p, chat_choices in chat.items()
        if len(chat_choices)
    ]
    frame = choices.assign(
        model=choices["model"].map(labels), protocol=choices["protocol"].map(figures.PROTOCOL_LABELS)
    )
    if frame["seed"].dropna().nunique() < 2:
        frame = frame.drop(columns="seed")
    formats = {"plain": ".4f", "chat": ".4f", "test": ".4f", "epoch": ".0f"}
    section = Section(
        "Plain or chat prompt",
        hint="chosen on validation",
        finding=f"{count(choices['model'].nunique(), 'instruction-tuned model')} had both prompts. The chat prompt was "
        f"better on validation {' and '.join(parts)}.",
        explanation="The columns plain and chat are scores on the validation split: of the untouched model, or of the "
        "best fine-tune under that prompt. The better one was chosen, and plain where both are equal. A fine-tune "
        "counts only if it is strictly better than the untouched model. The test split was scored under the chosen "
        "prompt.",
        tables=[Table("prompts", "Prompts chosen on validation", frame, formats=formats)],
    )
    return Part({}, section)


def agreement_between_seeds(data: Data, taus: dict[str, Value]) -> Part:
    """Agreement of a benchmark with itself when models are fine-tuned again with another seed."""
    if not taus:
        return Part({"reliability": taus})
    frame = pd.DataFrame({"benchmark": list(taus), "tau": list(taus.values())})
    section = Section(
        "Agreement between seeds",
        hint="the same benchmark, fine-tuned again",
        finding="Between rankings of one benchmark after fine-tuning with different seeds, tau is "
        f"{decimal(plotted(frame)['tau'].mean())} on average ({count(len(data.matrix.by_seed), 'seed')}).",
        tables=[Table("reliability", "tau between seeds, by benchmark", frame, formats={"tau": ".3f"})],
    )
    return Part({"reliability": taus}, section)
