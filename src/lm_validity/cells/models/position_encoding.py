"""Position encodings that depend on the longest text of a forward pass.

longrope has a second set of frequencies for texts beyond the length that the model was first made for. Dynamic scaling
has another set for every length beyond it, and keeps that of the longest text until a short one comes. So that a text's
numbers do not depend on what else is in its batch, texts share a forward pass only where their encoding is the same.
"""

import torch


class PositionEncoding:
    """What the encoding of a text of a model depends on beside the positions."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        config = model.config.get_text_config()
        of_model = getattr(config, "rope_parameters", None) or {}
        tables = (of_model, *(one for one in of_model.values() if isinstance(one, dict)))
        kinds = {one.get("rope_type") or "": one for one in tables}
        self._dynamic = any("dynamic" in kind for kind in kinds)
        self._limit: int | None = None  # the length up to which all texts are alike
        if "longrope" in kinds:
            self._limit = kinds["longrope"].get("original_max_position_embeddings")
        elif self._dynamic:
            self._limit = config.max_position_embeddings

    @property
    def varies(self) -> bool:
        """Whether it depends on the text at all."""
        return self._limit is not None

    def of(self, length: int) -> int:
        """0 for texts up to the length that the model was made for; beyond it 1 (longrope), or the length itself."""
        if self._limit is None or length <= self._limit:
            return 0
        return length if self._dynamic else 1

    @torch.no_grad()
    def forget(self) -> None:
        """Have a dynamic encoding forget the texts before."""
        if not self._dynamic:
            return
        for module in self._model.modules():
            kinds = getattr(module, "rope_type", None)
            by_layer = kinds if isinstance(kinds, dict) else {None: kinds}
            device = next(module.buffers(), torch.zeros(0)).device
            short = torch.zeros(1, 1, dtype=torch.long, device=device)
            for layer_type, kind in by_layer.items():
                if kind and "dynamic" in kind:
                    options = {} if layer_type is None else {"layer_type": layer_type}
                    module(torch.zeros(1, device=device), short, **options)
