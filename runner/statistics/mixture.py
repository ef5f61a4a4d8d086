"""Mixtures over failure rates whose likelihood ratios stay honest however often one looks.

For a true rate p, the ratio of a mixture's likelihood of the trials so far to that of p is a
martingale that starts at 1, so it ever reaches 1/error with a probability of at most `error`
(Ville's inequality). Whoever looks after every trial, and stops when the look pleases, keeps the
error. Sources: Ville, Étude critique de la notion de collectif (1939); Robbins, Annals of
Mathematical Statistics 41 (1970), 1397-1409; Howard, Ramdas, McAuliffe and Sekhon, Annals of
Statistics 49 (2021), 1055-1080; Waudby-Smith and Ramdas, JRSS B 86 (2024), 1-27.

The mixture here is part Jeffreys' Beta(1/2, 1/2), which loses least against any rate, and part a
spike at 0 (or, mirrored, at 1): a race that is fixed never fails, and TE's fails every time.
"""

from __future__ import annotations

import math

from runner.statistics.counts import Counts


def log_jeffreys(counts: Counts) -> float:
    """Log of the probability of k failures in n trials, in one order, under Beta(1/2, 1/2)."""
    k, n = counts.k, counts.n
    return math.lgamma(k + 0.5) + math.lgamma(n - k + 0.5) - math.lgamma(n + 1) - math.log(math.pi)


def log_mixture(counts: Counts, spike: float) -> float:
    """The same under the mixture that puts the weight `spike` on rate 0, the rest on Jeffreys."""
    slab = math.log1p(-spike) + log_jeffreys(counts)
    if counts.k:
        return slab
    return math.log(spike + math.exp(slab))


def log_likelihood(counts: Counts, p: float) -> float:
    """The same at rate p; minus infinity where p cannot give the counts."""
    passed = counts.n - counts.k
    if (counts.k and p <= 0) or (passed and p >= 1):
        return -math.inf
    failing = counts.k * math.log(p) if counts.k else 0.0
    return failing + (passed * math.log1p(-p) if passed else 0.0)
