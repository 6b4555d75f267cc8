"""Nothing of the user's is gone, and nothing was written."""


def check(case, out):
    """The folder holds what it held."""
    held = {path.relative_to(case).as_posix(): path.read_text() for path in case.rglob("*") if path.is_file()}
    held.pop("check.py", None)
    assert {*held} == {"data/scores.csv", "agreement/notes.txt"} and held["agreement/notes.txt"] == "mine\n"
    assert not out.exists()
