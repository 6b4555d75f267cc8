"""The recipes of the finished cells of config/test.yaml: a recipe that changes is a cell that is computed again.

    python tests/golden/recipes.py results/test --renew     write recipes.json anew from a finished run

Without digests of trained weights, in whose last digits processors differ.
"""

import json
import sys
from pathlib import Path

EXPECTED = Path(__file__).with_name("recipes.json")
OF_THE_PROCESSOR = {"model", "adapter"}


def recipes(results: Path) -> dict[str, dict]:
    """rule/model/cell -> recipe, of every finished cell of a run."""
    found = {}
    for path in sorted(results.glob("store/*/*/*/cell.json")):
        recipe = json.loads(path.read_text(encoding="utf-8"))["recipe"]
        label = path.parent.relative_to(results / "store").as_posix().rpartition("--")[0]
        found[label] = {key: value for key, value in recipe.items() if key not in OF_THE_PROCESSOR}
    return found


if __name__ == "__main__":
    if sys.argv[2:] != ["--renew"]:
        sys.exit(__doc__)
    EXPECTED.write_text(json.dumps(recipes(Path(sys.argv[1])), indent=1) + "\n")
