"""One kind of error for everything a user can mend; the command line prints it on one line and exits with 2."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

# hints that several modules give: for data that is not here yet, for a torch that cannot use a GPU, for 4-bit weights
PREFETCH = "`snakemake prefetch --profile profiles/local` with the same --configfile"
INSTALL_CUDA = "install it without an index of CPU builds (in a clone TORCH_INDEX)"
ON_CPU = "set evaluation.device to cpu"
INSTALL_NF4 = "pip install 'lm-validity[cells,nf4]', or set bias.zero_shot.quantization to none"


class Refusal(NamedTuple):
    """Why something is refused, and what to do about it: the two parts of an `InputError`."""

    problem: str
    hint: str


class _WithHint(Exception):
    def __init__(self, problem: str, hint: str):
        super().__init__(f"{problem} Hint: {hint}")
        self.problem = problem
        self.hint = hint

    def reworded(self, words: Mapping[str, str]) -> Self:
        """This error, of its kind, with other words in place of some: a draft's path as the reader knows it."""
        new = type(self).__new__(type(self))
        new.__dict__ |= self.__dict__
        for text, other in words.items():
            new.problem, new.hint = new.problem.replace(text, other), new.hint.replace(text, other)
        new.args = (f"{new.problem} Hint: {new.hint}",)
        return new


class InputError(_WithHint):
    """Bad input: what is wrong and where (file, row, column, value), and what to do about it."""


class Question(InputError):
    """What nothing says for sure: `problem` asks it in several lines. `readings`: answers as --columns takes them."""

    def __init__(self, problem: str, hint: str, readings: Sequence[str] = ()) -> None:
        super().__init__(problem, hint)
        self.readings = tuple(readings)


class CellError(_WithHint):
    """The cell itself is the cause (NaN, bad data). The manifest records it, and the job's other cells continue."""


def nearest(word: object, choices: Iterable[object]) -> str | None:
    """The choice most like `word`, or None where nothing is close: for `did you mean` hints."""
    import difflib

    matches = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: object, choices: Iterable[object], otherwise: str) -> str:
    """The hint for a name that is not known: the choice most like it, or `otherwise` where nothing is close."""
    close = nearest(word, choices)
    return f"did you mean {close!r}?" if close else otherwise


def first_line(error: BaseException) -> str:
    """The first line of an error's text, with the next where it only announces it: others' errors run over many."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
    return " ".join(lines[: 1 + lines[0].endswith(":")])


def again(command: str) -> str:
    """How to say that a command is to be given, of the run at hand: the default configuration is another run."""
    return f"`lm-validity {command}`, with the same --configfile"


class Problem(NamedTuple):
    """One line of preflight: where, what, and what to do (or what was done)."""

    where: str
    description: str
    action: str

    def __str__(self) -> str:
        return f"{self.where}: {self.description}; {self.action}"
