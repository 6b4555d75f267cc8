"""What is used of lm-eval beside its documented interface is what the installed version has.

After a new version of lm-eval: correct cells/lm_eval_internals.py, then this record and the bound in pyproject.toml.
"""

import inspect
import re
from pathlib import Path

import lm_eval.utils
import pytest
from lm_eval.models.huggingface import HFLM

from lm_validity.cells import lm_eval_internals as internals

SOURCE = Path(internals.__file__).parents[1]
PARAMETERS = {
    internals.load_yaml: {"path", "resolve_func"},
    internals.maybe_delimit: {"prefix", "suffix"},
    internals.normalize_gen_kwargs: {"gen_kwargs", "default_max_gen_toks"},
    internals.resolve_max_length: {"tokenizer", "default"},
    internals.TaskIndex.build: {"paths"},
    internals.TaskIndex.process_cfg: {"cfg", "path", "index_"},
    internals.TaskFactory.build: {"entry", "registry"},
}


@pytest.mark.parametrize("function", PARAMETERS, ids=lambda function: function.__qualname__)
def test_functions_take_what_they_are_given(function):
    assert PARAMETERS[function] <= set(inspect.signature(function).parameters)


@pytest.mark.parametrize(
    ("hook", "parameters"),
    [
        ("_loglikelihood_tokens", {"requests", "disable_tqdm", "override_bs"}),
        ("_encode_pair", {"context", "continuation"}),
        ("_model_call", {"inps", "attn_mask", "labels"}),
        ("_model_generate", {"context", "max_length", "stop", "generation_kwargs"}),
    ],
)
def test_hooks_of_the_model_class_take_what_ours_take(hook, parameters):
    assert parameters <= set(inspect.signature(getattr(HFLM, hook)).parameters)


def test_templates_are_compiled_by_the_environment_that_remembers():
    assert lm_eval.utils.env.from_string("{{a}}") is lm_eval.utils.env.from_string("{{a}}")
    assert "env.from_string" in inspect.getsource(lm_eval.utils.apply_template)


def test_private_modules_are_imported_here_only():
    private = re.compile(r"from lm_eval[\w.]*\._(?!_)|from lm_eval\.(api|models)\.utils")
    found = {path.name for path in SOURCE.rglob("*.py") if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"lm_eval_internals.py"}
