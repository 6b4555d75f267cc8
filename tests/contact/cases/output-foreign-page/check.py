"""Nothing of the user's is gone, and nothing was written."""


def check(case, out):
    """The output holds what it held."""
    held = {path.relative_to(case / "mine").as_posix(): path for path in (case / "mine").rglob("*") if path.is_file()}
    assert {*held} == {"agreement/notes.txt"} and held["agreement/notes.txt"].read_text() == "mine\n"
