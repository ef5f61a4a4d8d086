"""Bisection of a failure rate: which commit changed it, how sure, at the least cost. No I/O."""
