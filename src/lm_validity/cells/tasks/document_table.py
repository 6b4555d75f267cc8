"""The texts of a benchmark's test documents, for filters that read them and for scoring what a filter keeps."""

from pathlib import Path
from typing import Any

import pandas as pd

from lm_validity.cells.tasks.groups import Document
from lm_validity.cells.tasks.tasks import FEWSHOT_SEED, AnyTask, Documents, gold_choice, subject_of, task_of, tasks_in
from lm_validity.tables.schema import DOCUMENTS, write_table


def write_documents(benchmark: str, task: AnyTask, documents: Documents, path: Path) -> None:
    """Write documents.parquet, one row per document with the columns of DOCUMENTS; a perplexity corpus has none."""
    rows = []
    if task.OUTPUT_TYPE != "loglikelihood_rolling":
        for own in tasks_in(task).values():
            own.set_fewshot_seed(FEWSHOT_SEED)  # the examples that scoring shows, where they are drawn at random
        rows = [
            {"benchmark": benchmark, "doc_id": address, **_describe(task, doc)}
            for address, doc in zip(documents.addresses, documents.docs, strict=True)
        ]
    write_table(pd.DataFrame(rows, columns=DOCUMENTS.names), DOCUMENTS, path)


def _describe(task: AnyTask, doc: Document) -> dict[str, Any]:
    own = task_of(task, doc)
    prefix = own.doc_to_prefix(doc)
    prompt = own.fewshot_context(doc, num_fewshot=own.config.num_fewshot or 0, gen_prefix=prefix)
    choice = own.OUTPUT_TYPE == "multiple_choice"
    # where the choices stand in the prompt, each has its own, and what follows is the same for all
    varies = choice and own.multiple_input
    return {
        "subject": subject_of(task, doc),
        "context": str(own.doc_to_target(doc) if varies else own.doc_to_text(doc)),
        "choices": [str(one) for one in own.doc_to_choice(doc)] if choice else None,
        "gold": gold_choice(own, doc) if choice else None,
        "prompt": None if varies else prompt,
        "target_delimiter": own.config.target_delimiter,
    }
