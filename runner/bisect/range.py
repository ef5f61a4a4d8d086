"""The range of a bisection: a path of commits from good to bad, merged by what their builds are.

The path leads from the good end back along its first-parent history to where both ends meet (their
merge base) and from there forward to the bad end. Where one end is in the other's history, one of
the two parts is empty; where the bad end is the older one, the search is for what fixed it. So
there is one line, whatever the history's shape, and the rate changes somewhere along it.

Commits with one build key are one class: one artifact has one rate. Where the path comes back to a
key (a revert), what lies between cannot have brought a change that lasted, for the artifact before
and after it is the same; it is taken out of the path (`undone`). What is left visits each class
once, and every step between two classes is the doing of one commit, which a verdict can name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from runner.errors import BisectionError
from runner.result import Commit
from runner.run import BuildId

if TYPE_CHECKING:  # a node with no git goes on with a range that was made elsewhere
    from runner.lineage import Lineage


@dataclass(frozen=True)
class BuildClass:
    """Commits of the path that have one build.

    key: what they share. commits: in the path's order; the first one stands for all.
    blamed: the commit by which the path leads from the class before into this one, None for the
        first class. Where `forward` is False the path goes back in time there, and it is by leaving
        `blamed` behind that it leads into this class.
    second_parent: of a blamed merge, empty for any other commit.
    weight: how likely the blamed commit is to change a rate, to any scale.
    """

    key: str
    commits: tuple[Commit, ...]
    blamed: Commit | None = None
    forward: bool = True
    second_parent: str = ""
    weight: float = 1.0

    @property
    def commit(self) -> Commit:
        """The one that is built."""
        return self.commits[0]


@dataclass(frozen=True)
class Range:
    """Classes from the good end's to the bad end's; at least two, all keys different.

    build: the build of each commit that is looked at, a `BuildId` as text. base: place of the class
    that holds the ends' merge base, where it is neither the first nor the last.
    undone: commits of the path that it came back from, and that are in no class.
    """

    good: Commit
    bad: Commit
    build: str
    classes: tuple[BuildClass, ...]
    base: int | None = None
    undone: tuple[Commit, ...] = ()

    @property
    def commits(self) -> int:
        """Commits of the path, both ends included."""
        return sum(len(each.commits) for each in self.classes) + len(self.undone)

    @property
    def merges(self) -> tuple[int, ...]:
        """Places of the classes that a merge leads into."""
        return tuple(i for i, each in enumerate(self.classes) if each.second_parent)

    @property
    def text(self) -> str:
        """The range in one sentence."""
        parts = [f"{self.commits} commits in {len(self.classes)} classes by build"]
        if self.merges:
            parts.append(f"{len(self.merges)} merge{'s' * (len(self.merges) > 1)}")
        if self.undone:
            parts.append(f"{len(self.undone)} undone")
        if self.base is not None:
            held = self.classes[self.base].commit.sha[:12]
            parts.append(f"the ends diverge, {held} is tested first")
        return ", ".join(parts)

    def place(self, key: str) -> int | None:
        """The class with that key, None where there is none."""
        return next((i for i, each in enumerate(self.classes) if each.key == key), None)

    def to_data(self) -> dict[str, Any]:
        """As JSON takes it."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Range:
        """What `to_data` gave. Raises BisectionError for anything else."""
        try:
            return cls(
                good=Commit(**data["good"]),
                bad=Commit(**data["bad"]),
                build=data["build"],
                classes=tuple(_class_from(each) for each in data["classes"]),
                base=data["base"],
                undone=tuple(Commit(**each) for each in data["undone"]),
            )
        except (KeyError, TypeError) as error:
            raise BisectionError(f"range of a bisection: cannot be read ({error})") from error


def _class_from(data: dict[str, Any]) -> BuildClass:
    blamed = data["blamed"]
    return BuildClass(
        **{
            **data,
            "commits": tuple(Commit(**each) for each in data["commits"]),
            "blamed": Commit(**blamed) if blamed else None,
        }
    )


@dataclass(frozen=True)
class _Edge:
    """What leads to the next commit of a path."""

    blamed: Commit
    forward: bool
    second_parent: str
    weight: float


def between(lineage: Lineage, good: Commit, bad: Commit, build: BuildId) -> Range:
    """The range from a good to a bad commit, whichever is older.

    Raises BisectionError where there is nothing to bisect between the two.
    """
    for end in (good, bad):
        if end.is_release:
            raise BisectionError(
                f"release {end.sha} has no git history to bisect: name its tag (v{end.sha})"
            )
    if good.sha == bad.sha:
        raise BisectionError(f"both ends are {good.sha[:12]}: nothing to bisect")
    base = lineage.merge_base(good, bad)
    if base is None:
        raise BisectionError(
            f"{good.sha[:12]} and {bad.sha[:12]} have no history in common: nothing to bisect"
        )
    nodes, edges = _path(lineage, good, bad, base)
    keys = lineage.keys(nodes, build)
    if keys[0] == keys[-1]:
        raise BisectionError(
            f"{good.sha[:12]} and {bad.sha[:12]} have the same build {build}: "
            f"nothing that enters it differs, so neither do their rates"
        )
    return _range(nodes, edges, keys, str(build), base)


def into_merge(lineage: Lineage, outer: Range, place: int) -> Range | None:
    """The range inside the merge that leads into a class: from where its branch left to the merge.

    None where the branch has no build of its own between the two.
    """
    entered = outer.classes[place]
    merge = entered.blamed
    if merge is None or not entered.second_parent:
        raise ValueError(f"class {place} is not led into by a merge")
    first, tip = (
        lineage.resolve(f"{merge.sha}^1"),
        lineage.resolve(entered.second_parent),
    )
    start = lineage.merge_base(first, tip)
    if start is None:
        return None
    steps = lineage.steps(tip, start)
    nodes = [start, *(step.commit for step in steps), merge]
    edges = [
        _Edge(step.commit, True, _second(step.parents), lineage.weight(step.paths))
        for step in steps
    ]
    edges.append(_Edge(merge, True, "", 1.0))
    if not entered.forward:
        nodes.reverse()
        edges = [_Edge(e.blamed, False, e.second_parent, e.weight) for e in reversed(edges)]
    build = BuildId.parse(outer.build)
    keys = lineage.keys(nodes, build)
    if len(set(keys)) <= 2 or keys[0] == keys[-1]:
        return None
    return _range(nodes, edges, keys, outer.build, None)


def _path(
    lineage: Lineage, good: Commit, bad: Commit, base: Commit
) -> tuple[list[Commit], list[_Edge]]:
    nodes, edges = [base], []
    # Seen from the base, so that the two halves are read alike; the good one is turned round.
    for step in lineage.steps(good, base):
        nodes.append(step.commit)
        edges.append(_Edge(step.commit, False, _second(step.parents), lineage.weight(step.paths)))
    nodes.reverse()
    edges.reverse()
    for step in lineage.steps(bad, base):
        nodes.append(step.commit)
        edges.append(_Edge(step.commit, True, _second(step.parents), lineage.weight(step.paths)))
    return [good, *nodes[1:-1], bad], edges


def _second(parents: Sequence[str]) -> str:
    return parents[1] if len(parents) > 1 else ""


def _range(
    nodes: Sequence[Commit],
    edges: Sequence[_Edge],
    keys: Sequence[str],
    build: str,
    base: Commit | None,
) -> Range:
    last = {key: place for place, key in enumerate(keys)}
    classes: list[BuildClass] = []
    entry = 0
    while True:
        members = tuple(node for node, key in zip(nodes, keys, strict=True) if key == keys[entry])
        edge = edges[entry - 1] if entry else None
        # The commit that the path enters by stands for the class, the bad end for its own.
        first = nodes[-1] if keys[entry] == keys[-1] else nodes[entry]
        members = (first, *(node for node in members if node.sha != first.sha))
        classes.append(
            BuildClass(keys[entry], members)
            if edge is None
            else BuildClass(
                keys[entry], members, edge.blamed, edge.forward, edge.second_parent, edge.weight
            )
        )
        if last[keys[entry]] == len(nodes) - 1:
            break
        entry = last[keys[entry]] + 1
    kept = {each.key for each in classes}
    held = [
        i for i, each in enumerate(classes) if base and base.sha in {c.sha for c in each.commits}
    ]
    return Range(
        good=nodes[0],
        bad=nodes[-1],
        build=build,
        classes=tuple(classes),
        base=held[0] if held and 0 < held[0] < len(classes) - 1 else None,
        undone=tuple(node for node, key in zip(nodes, keys, strict=True) if key not in kept),
    )
