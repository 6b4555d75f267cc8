"""Nothing is left of the folders."""


def check(case, out):
    assert not (out / "deep").exists()
