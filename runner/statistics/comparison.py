"""Head against base: whether a cell fails more often at one commit than at another, and how sure.

The test is Fisher's exact one, one-sided. It keeps its error at any number of trials and any rate,
also at 0 and 1, where races sit; it has no unknown rate to maximise over, takes time in proportion
to the failures, and everyone can check it (`scipy.stats.fisher_exact(..., alternative="greater")`).
Boschloo's test would sometimes do with one failure less, at the price of a search over that unknown
rate for every pair of cells on a page. Source: Fisher, JRSS 98 (1935), 39-82.

Fisher's test is for numbers of trials that did not depend on results. Where they did (`adaptive`),
the p value comes from a mixture's likelihood against the best that "not higher" can offer, which
holds however often one looks and whichever side the next trial goes to. Source: Wasserman, Ramdas
and Balakrishnan, PNAS 117 (2020), 16880-16890.

The rule, for one cell:

- `not measured`: head has no trial that counts.
- `regressed`: head's rate is shown higher, p < 0.01. Where base never failed, the text says `newly
  failing`, else `worse`. One failure of 100 where base had none of 100 does prove that head races,
  but not that head brought it: a race of 1 % in both looks like that in 14 % of all cases. Blame
  waits for p < 0.01, which takes 7 of 100 there, 2 of 10 against 0 of 100, and 5 of 5 against
  0 of 5. Until then the verdict is `undersampled`, with the trials that would settle it.
- `no worse`: both have failed ("the base already races"), and head is shown not to be much worse,
  which is a rise by `clean_below` at least and a doubling at least: the upper end of head's
  interval lies below the larger of the two, both counted from the lower end of base's. So a few
  trials are never taken for "not worse": 6 of 6 against 6 of 6 is no worse, 1 of 1 against 1 of 1
  is not known yet.
- `clean`: head has no failure and is below `clean_below`; `fixed` where base's rate is shown to be
  higher besides, p < 0.01.
- `undersampled`: everything else.

Errors of one cell, whatever the two rates are: `regressed` and `fixed` at most 1 % where there is
no such difference, `no worse` at most 5 % where head is much worse, `clean` at most 2.5 % where
head's rate is at or above the bound. Those of several cells add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from runner.rates import clean_trials, percent
from runner.statistics import forecast
from runner.statistics.counts import Counts, span
from runner.statistics.kinds import Kind
from runner.statistics.mixture import log_likelihood, log_mixture
from runner.statistics.sequential import confidence_sequence

ERROR = 0.01
"""Chance to call a cell `regressed` whose rate is not higher than base's, or `fixed` one whose rate
is not lower."""
SPIKE = 0.5
"""Weight of never failing on one side, and of always failing on the other, in the adaptive test."""
FORECAST = 10_000
"""Further trials beyond which a forecast only says that it takes more."""


@dataclass(frozen=True)
class Comparison:
    """A verdict on head against base, with its sentence.

    verdict: one of the kinds of this module's rule. label: the verdict in the words of a table,
        for example `newly failing` or `clean below 5 %`.
    short: what a commit status has room for, for example `newly failing: 7 of 100, base 0 of 100`.
    p: one-sided p value of "head's rate is not higher than base's", 1 where base has no trial.
    p_lower: the same the other way round.
    interval: of head's rate. difference: of head's rate less base's, (-1, 1) where one is not
        measured; for display, no verdict depends on it (`difference`).
    no_worse: head is shown not to be much worse than a base that has failed; also told of cells
        without a failure that are still `undersampled` as to `clean`.
    trials_needed, base_trials_needed: about how many further trials of each would settle it if the
        rates stay as seen; at most FORECAST, 0 where none.
    """

    verdict: Kind
    label: str
    text: str
    short: str
    p: float
    p_lower: float
    interval: tuple[float, float]
    difference: tuple[float, float]
    no_worse: bool = False
    trials_needed: int = 0
    base_trials_needed: int = 0


@lru_cache(maxsize=16_384)
def compare(head: Counts, base: Counts, clean_below: float, adaptive: bool = False) -> Comparison:
    """The verdict on head's counts of a cell against base's, by this module's rule.

    clean_below: the matrix's bound. adaptive: how many trials one of the two got depended on
    results (stopped early, extended, chosen by a bisection); intervals and p values are then those
    that stay valid under it.
    """
    if not 0 < clean_below < 1:
        raise ValueError(f"clean_below must be between 0 and 1, got {clean_below}")
    question = _Question(clean_below, adaptive)
    verdict = question.verdict(head, base)
    more, base_more = 0, 0
    if verdict is Kind.UNDERSAMPLED:
        more, base_more = question.further(head, base)
    facts = _Facts(head, base, clean_below, question, verdict)
    return Comparison(
        verdict=verdict,
        label=facts.label,
        text=facts.text(more, base_more),
        short=facts.short(more, base_more),
        p=question.p(head, base),
        p_lower=question.p(base, head),
        interval=question.interval(head),
        difference=_difference(head, base, question),
        no_worse=verdict is not Kind.REGRESSED and question.no_worse(head, base),
        trials_needed=more,
        base_trials_needed=base_more,
    )


@dataclass(frozen=True)
class _Question:
    """The rule at one bound, with the intervals and p values that the sampling calls for."""

    clean_below: float
    adaptive: bool

    def interval(self, counts: Counts) -> tuple[float, float]:
        return interval(counts, self.adaptive)

    def p(self, head: Counts, base: Counts) -> float:
        return (anytime if self.adaptive else fisher)(head, base)

    def clean(self, counts: Counts) -> bool:
        return counts.n > 0 and not counts.k and self.interval(counts)[1] < self.clean_below

    def no_worse(self, head: Counts, base: Counts) -> bool:
        if not (head.n and base.k):
            return False
        least = self.interval(base)[0]
        return self.interval(head)[1] < max(least + self.clean_below, 2 * least)

    def verdict(self, head: Counts, base: Counts) -> Kind:
        if not head.n:
            return Kind.NOT_MEASURED
        if self.p(head, base) < ERROR:
            return Kind.REGRESSED
        if self.clean(head):
            return Kind.FIXED if self.p(base, head) < ERROR else Kind.CLEAN
        if head.k and self.no_worse(head, base):
            return Kind.NO_WORSE
        return Kind.UNDERSAMPLED

    def further(self, head: Counts, base: Counts) -> tuple[int, int]:
        """Further trials of head and of base, the base brought to head's number at least."""
        if not head.k:
            return clean_after(self.clean_below, self.adaptive) - head.n, 0

        def grown(more: int) -> tuple[Counts, Counts]:
            n = head.n + more
            return head.grown_to(n), base.grown_to(max(n, base.n))

        more = forecast.smallest(lambda more: self._settles(*grown(more)), FORECAST)
        if more is None:
            return FORECAST, FORECAST
        return more, grown(more)[1].n - base.n

    def _settles(self, head: Counts, base: Counts) -> bool:
        # Cheaper than the verdict, which counts where a forecast asks for thousands of trials: the
        # ends of the intervals are looked for only where the rates themselves would do.
        if self.p(head, base) < ERROR:
            return True
        seen, least = head.rate or 0.0, base.rate or 0.0
        return seen < max(least + self.clean_below, 2 * least) and self.no_worse(head, base)


@dataclass(frozen=True)
class _Facts:
    """The sentences of a comparison."""

    head: Counts
    base: Counts
    clean_below: float
    question: _Question
    verdict: Kind

    def text(self, more: int, base_more: int) -> str:
        if self.verdict is Kind.NOT_MEASURED:
            return str(self.verdict)
        head, base = self.head, self.base
        seen = f"{head.text} failed ({span(self.question.interval(head))}), base {base.text}"
        if base.n:
            seen += f" ({span(self.question.interval(base))})"
        if self.verdict in (Kind.REGRESSED, Kind.FIXED):
            lower = self.verdict is Kind.FIXED
            seen += f", {_p(self.question.p(base, head) if lower else self.question.p(head, base))}"
        if self.verdict is not Kind.UNDERSAMPLED:
            return f"{self.label}: {seen}"
        if head.k and base.n:
            seen += f", not shown worse ({_p(self.question.p(head, base))})"
        elif self.question.p(base, head) < ERROR:
            seen += f", lower ({_p(self.question.p(base, head))})"
        return f"{self.label}: {seen}; {self._needs(more, base_more)}"

    def short(self, more: int, base_more: int) -> str:
        if self.verdict is Kind.NOT_MEASURED:
            return str(self.verdict)
        seen = f"{self.head.text}, base {self.base.text}"
        if self.verdict is Kind.UNDERSAMPLED:
            return f"undersampled: {seen}; {self._needs(more, base_more)}"
        return f"{self.label}: {seen}"

    @property
    def label(self) -> str:
        match self.verdict:
            case Kind.REGRESSED:
                return "worse" if self.base.k else "newly failing"
            case Kind.NO_WORSE:
                return "no worse, the base already races"
            case Kind.FIXED:
                return f"fixed, clean below {percent(self.clean_below)}"
            case Kind.CLEAN:
                return f"clean below {percent(self.clean_below)}"
        return str(self.verdict)

    def _needs(self, more: int, base_more: int) -> str:
        if not self.head.k:
            return f"{more} more for clean below {percent(self.clean_below)}"
        if more >= FORECAST:
            return f"more than {FORECAST} more of each to tell"
        if more == base_more:
            return f"about {more} more of each to tell"
        wanted = [f"{more} more"] if more else []
        wanted += [f"{base_more} more of the base"] if base_more else []
        return f"about {' and '.join(wanted)} to tell"


def interval(counts: Counts, adaptive: bool = False) -> tuple[float, float]:
    """The 95 % interval that the sampling calls for: Clopper-Pearson's or a confidence sequence."""
    return confidence_sequence(counts.k, counts.n) if adaptive else counts.interval


@lru_cache(maxsize=256)
def clean_after(bound: float, adaptive: bool = False) -> int:
    """Trials without one failure after which the interval that counts ends below `bound`."""
    if not adaptive:
        return clean_trials(bound)
    # The interval is wider than the other one at every n, so that is where to begin.
    start = clean_trials(bound)
    more = forecast.smallest(lambda n: confidence_sequence(0, start + n)[1] < bound, 9 * start)
    assert more is not None, f"nine times {start} passes are below {bound}"
    return start + more


def fisher(head: Counts, base: Counts) -> float:
    """Fisher's exact p value of "head's rate is not higher than base's".

    The chance that head has its number of failures or more, when all failures of both fall on the
    trials of both by lot. Below ERROR in at most ERROR of all cases where head's rate is not
    higher, for any numbers of trials that were fixed beforehand.
    """
    failed, trials = head.k + base.k, head.n + base.n
    fewest, most = max(0, failed - base.n), min(failed, head.n)
    if head.k <= fewest:
        return 1.0
    if head.k * trials > failed * head.n:
        return min(1.0, _hypergeometric(head.k, most, head.n, base.n, failed))
    return max(0.0, 1.0 - _hypergeometric(head.k - 1, fewest, head.n, base.n, failed))


def _hypergeometric(start: int, end: int, head: int, base: int, failed: int) -> float:
    """Chances of `start` to `end` failures at head, summed away from the likeliest number."""

    def ways(n: int, k: int) -> float:
        return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

    term = total = math.exp(
        ways(head, start) + ways(base, failed - start) - ways(head + base, failed)
    )
    step = 1 if end >= start else -1
    for x in range(start, end, step):
        if step > 0:
            term *= (head - x) * (failed - x) / ((x + 1) * (base - failed + x + 1))
        else:
            term *= x * (base - failed + x) / ((head - x + 1) * (failed - x + 1))
        total += term
        if term < total * 1e-17:
            break
    return total


def anytime(head: Counts, base: Counts) -> float:
    """A p value of "head's rate is not higher than base's" that holds at every look.

    It is one over the ratio of a mixture's likelihood of all trials to the largest likelihood that
    two rates can give them where head's is not higher. Against the true pair of rates that ratio is
    at most a martingale that starts at 1, in whatever order and numbers the trials come, so it ever
    reaches 1/ERROR in at most ERROR of all cases (Ville's inequality).
    """
    mixture = log_mixture(head.mirrored, SPIKE) + log_mixture(base, SPIKE)
    # Rates are compared as whole numbers: equal ones must not differ by rounding.
    if head.k * base.n > base.k * head.n:
        both = head + base
        best = log_likelihood(both, both.k / both.n)
    else:
        best = _own_best(head) + _own_best(base)
    return min(1.0, math.exp(min(0.0, best - mixture)))


def _own_best(counts: Counts) -> float:
    return log_likelihood(counts, counts.k / counts.n) if counts.n else 0.0


def difference(head: Counts, base: Counts) -> tuple[float, float]:
    """About 95 % interval of head's rate less base's, (-1, 1) where one is not measured.

    The distances of the two Clopper-Pearson intervals' ends, squared and added: Newcombe's method
    (Statistics in Medicine 17 (1998), 873-890) with exact intervals in place of Wilson's, which
    makes it wider. It is close to 95 %, not bound to it; the verdicts rest on the exact test.
    """
    return _difference(head, base, _Question(0.5, adaptive=False))


def _difference(head: Counts, base: Counts, question: _Question) -> tuple[float, float]:
    if head.rate is None or base.rate is None:
        return -1.0, 1.0
    (low1, high1), (low0, high0) = question.interval(head), question.interval(base)
    middle = head.rate - base.rate
    down = math.hypot(head.rate - low1, high0 - base.rate)
    up = math.hypot(high1 - head.rate, base.rate - low0)
    return max(-1.0, middle - down), min(1.0, middle + up)


def _p(p: float) -> str:
    return f"p = {p:.2g}" if p >= 0.0001 else "p < 0.0001"
