"""What a scorer has to compute: requests with one context as a tree of tokens, and trees gathered into batches.

A request is a context and a continuation in tokens. Requests whose context tokens are equal (the choices of one
question) become one *tree*: the context is its trunk, each continuation a branch, and beginnings that branches share
are there once. The position of a token is its depth, and it may look at its ancestors and itself only, so its
log-probability is what it would be in a row of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

Request = tuple[object, list[int], list[int]]  # lm-eval's: (key, context tokens, continuation tokens)


@dataclass
class Tree:
    """Requests of one context.

    tokens: the context, then the branches' nodes; parents: index of the token before (-1: none); depths: positions.
    requests: (number of the request, nodes that predict its continuation, the continuation), the nodes being the
    last of the context and all of the branch but its end.
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    context: int
    requests: list[tuple[int, list[int], list[int]]] = field(default_factory=list)

    @classmethod
    def of_context(cls, context: Sequence[int]) -> "Tree":
        """A tree with the tokens of a context and no branch yet."""
        length = len(context)
        return cls(list(context), list(range(-1, length - 1)), list(range(length)), length)

    def add(self, number: int, continuation: list[int], children: dict[tuple[int, int], int]) -> None:
        """Hang a continuation below the context. `children`: (parent, token) -> node, this tree's alone."""
        node = self.context - 1
        path = [node]
        for token in continuation[:-1]:
            key = (node, token)
            if key not in children:
                children[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
                self.depths.append(self.depths[node] + 1)
            node = children[key]
            path.append(node)
        self.requests.append((number, path, list(continuation)))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether no token has two successors: then a plain row of tokens says it all."""
        return all(parent == place - 1 for place, parent in enumerate(self.parents))

    @property
    def longest(self) -> int:
        """Tokens of the longest path."""
        return max(self.depths) + 1

    def chains(self) -> list["Tree"]:
        """The same requests, each in a row of its own; a row that begins another is part of it."""
        child: dict[int, int] = {}
        for node in range(len(self) - 1, self.context - 1, -1):
            child[self.parents[node]] = node
        made: dict[int, Tree] = {}
        for number, path, continuation in self.requests:
            leaf = path[-1]
            while leaf in child:
                leaf = child[leaf]
            if leaf not in made:
                made[leaf] = Tree.of_context(self._path_to(leaf))
                made[leaf].context = self.context
            made[leaf].requests.append((number, [self.depths[node] for node in path], continuation))
        return list(made.values())

    def singles(self) -> list["Tree"]:
        """The same requests, each in a row of its own, as long as it is by itself."""
        made = []
        for number, path, continuation in self.requests:
            row = Tree.of_context(self._path_to(path[-1]))
            row.context = self.context
            row.requests.append((number, [self.depths[node] for node in path], continuation))
            made.append(row)
        return made

    def _path_to(self, node: int) -> list[int]:
        tokens = []
        while node >= 0:
            tokens.append(self.tokens[node])
            node = self.parents[node]
        return tokens[::-1]

    def visible(self, start: int = 0) -> np.ndarray:
        """Which tokens each token from `start` on may look at: bool, (tokens - start, tokens)."""
        seen = np.zeros((len(self), len(self)), dtype=bool)
        seen[: self.context, : self.context] = np.tri(self.context, dtype=bool)
        for node in range(self.context, len(self)):
            seen[node] = seen[self.parents[node]]
            seen[node, node] = True
        return seen[start:]


def truncate(context: list[int], continuation: list[int], max_length: int) -> tuple[list[int], list[int]]:
    """Cut on the left as lm-eval does: the model sees at most `max_length` tokens, the last one only predicted.

    The continuation must fit; then one token of context at least is left.
    """
    surplus = len(context) + len(continuation) - (max_length + 1)
    return (context[surplus:] if surplus > 0 else context), continuation


def plant(requests: Sequence[Request], max_length: int) -> tuple[list[Tree], list[bool]]:
    """The trees of all requests, in the order of their first request, and whether each request was truncated.

    Contexts are compared after truncation, so choices that lose different numbers of tokens share nothing.
    """
    trees: dict[tuple[int, ...], Tree] = {}
    children: dict[tuple[int, ...], dict[tuple[int, int], int]] = {}
    truncated = []
    for number, (_, whole_context, continuation) in enumerate(requests):
        context, continuation = truncate(whole_context, continuation, max_length)
        truncated.append(len(context) < len(whole_context))
        key = tuple(context)
        if key not in trees:
            trees[key], children[key] = Tree.of_context(context), {}
        trees[key].add(number, continuation, children[key])
    return list(trees.values()), truncated


def batches(trees: Sequence[Tree], rows: int) -> Iterator[list[Tree]]:
    """Trees of similar size together, the longest first, never more tokens than `rows` rows of single choices would be.

    The order depends on the trees alone, not on the order of the documents.
    """
    ordered = sorted(trees, key=lambda tree: (-len(tree), tree.tokens))
    batch: list[Tree] = []
    for tree in ordered:
        longest = max((each.longest for each in batch), default=0)
        if batch and (len(batch) + 1) * len(batch[0]) > rows * max(longest, tree.longest):
            yield batch
            batch = []
        batch.append(tree)
    if batch:
        yield batch


def count_row_tokens(trees: Sequence[Tree]) -> int:
    """Tokens of the same requests, each different row computed by itself (lm-eval's way)."""
    total = 0
    for tree in trees:
        ends = {path[-1] for _, path, _ in tree.requests}
        total += sum(tree.depths[end] + 1 for end in ends)
    return total
