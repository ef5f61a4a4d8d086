"""The API: `/api/v1`, a module per noun."""

from service.api import (
    bisections,
    cells,
    commits,
    imports,
    measurements,
    order,
    pulls,
    runs,
    signatures,
    subjects,
    trend,
    trials,
    workers,
)

ROUTERS = (
    runs.router,
    order.router,
    imports.router,
    trials.router,
    signatures.router,
    measurements.router,
    bisections.reading,
    bisections.router,
    commits.router,
    cells.router,
    trend.router,
    subjects.router,
    pulls.reading,
    pulls.router,
    workers.router,
)

__all__ = ["ROUTERS"]
