"""A subject's history as a bisection asks for it: steps, what tells builds apart, and reverts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.build import content_key
from runner.errors import VariantError
from runner.git import Repository, Step
from runner.result import Commit
from runner.run import BuildId

SUSPECTS: Mapping[str, float] = {
    "transformer_engine/jax/csrc": 4.0,
    "transformer_engine/jax": 2.0,
    "transformer_engine/common": 1.0,
}
"""How much more likely than any other path these are to hold what changed a race's rate: the
captures and their registration are in TE's JAX extension, what they capture is in its core."""


class Lineage(Protocol):
    """What a bisection asks of a subject's history."""

    def resolve(self, ref: str) -> Commit:
        """The commit that a branch, a tag or a hash names. Raises RefError."""
        ...

    def fetch_commit(self, commit: Commit) -> None:
        """Have a commit here that another host found out or made. Raises RefError."""
        ...

    def is_on_branch(self, commit: Commit) -> bool:
        """Whether a branch or a tag of the repository has a commit."""
        ...

    def merge_base(self, one: Commit, other: Commit) -> Commit | None:
        """The newest commit that both have in their history; None where there is none."""
        ...

    def steps(self, head: Commit, since: Commit) -> list[Step]:
        """First-parent history up to `head`, oldest first, without what `since` has."""
        ...

    def keys(self, commits: Sequence[Commit], build_id: BuildId) -> list[str]:
        """For each commit what its build is known by; nothing is built for that.

        Commits with equal keys have one build. It need not be the key that the build itself gets.
        """
        ...

    def weight(self, paths: Sequence[str]) -> float:
        """How likely, to any scale, a step that touches these paths is to change a rate."""
        ...

    def revert(self, culprit: Commit, head: Commit) -> Commit:
        """`head` without what `culprit` brought. Raises VariantError where that is not clean."""
        ...


@dataclass(frozen=True)
class GitLineage:
    """The lineage of a subject in a git repository.

    inputs: what enters the build of each commit, by name. suspects: weights by folder; a path in
    none of them weighs 0.5, and a step as much as its heaviest path.
    """

    repository: Repository
    inputs: Callable[[Sequence[Commit]], Sequence[Mapping[str, str]]]
    suspects: Mapping[str, float]

    def resolve(self, ref: str) -> Commit:
        """See Lineage."""
        return self.repository.resolve(ref)

    def fetch_commit(self, commit: Commit) -> None:
        """See Lineage."""
        self.repository.fetch_commit(commit)

    def is_on_branch(self, commit: Commit) -> bool:
        """See Lineage."""
        return self.repository.is_on_branch(commit.sha)

    def merge_base(self, one: Commit, other: Commit) -> Commit | None:
        """See Lineage."""
        return self.repository.merge_base(one, other)

    def steps(self, head: Commit, since: Commit) -> list[Step]:
        """See Lineage."""
        return self.repository.steps(head, since)

    def keys(self, commits: Sequence[Commit], build_id: BuildId) -> list[str]:
        """See Lineage. A commit that a pull request does not merge onto has a key of its own."""
        pulls = [self.repository.resolve(f"pull/{pull}") for pull in build_id.pulls]
        merged: list[Commit] = []
        alone: dict[int, str] = {}
        for place, commit in enumerate(commits):
            try:
                for pull in pulls:
                    commit = self.repository.merge_commit(commit, pull)
            except VariantError:
                alone[place] = f"no merge onto {commit.sha}"
            merged.append(commit)
        parts = self.inputs(merged)
        return [alone.get(place) or content_key(each, build_id) for place, each in enumerate(parts)]

    def weight(self, paths: Sequence[str]) -> float:
        """See Lineage."""
        return max((self._weight(path) for path in paths), default=0.5)

    def _weight(self, path: str) -> float:
        within = [folder for folder in self.suspects if path.startswith(f"{folder}/")]
        return self.suspects[max(within, key=len)] if within else 0.5

    def revert(self, culprit: Commit, head: Commit) -> Commit:
        """See Lineage."""
        return self.repository.revert(culprit, head)
