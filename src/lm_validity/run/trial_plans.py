"""From a batch of trials in the grid to the plan of its worker: the configuration and the login node's records."""

from typing import TYPE_CHECKING

from lm_validity.run.trial_plan import Adapter, Classification, Pretraining, TaskData, TrialPlan
from lm_validity.run.trial_settings import TrialCell, plan_values, shared_sizes

if TYPE_CHECKING:
    from lm_validity.run.workspace import Workspace


def make_plan(workspace: "Workspace", cell: TrialCell, device: str = "cpu") -> TrialPlan:
    """The plan of a cell. `device` changes no number beyond rounding and is not in the plan's recipe."""
    values = plan_values(workspace.run, cell)
    pretraining, classification = values.pop("pretraining"), values.pop("classification")
    adapter = pretraining.pop("adapter")
    point = workspace.language_model_record(cell.model)["checkpoints"]["final"]
    return TrialPlan(
        **values,
        model_path=point["path"],
        model_revision=point["revision"],
        model_digest=point["digest"],
        data=TaskData.of_record(workspace.trial_task_record(cell.task)),
        subsamples=tuple(range(cell.first, cell.last + 1)),
        pretraining=Pretraining(**pretraining, adapter=Adapter(**adapter) if adapter else None),
        classification=Classification(**classification),
        share_base=shared_sizes(workspace.run, cell),
        device=device,
    )
