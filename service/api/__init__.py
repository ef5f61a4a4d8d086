"""The API: `/api/v1`, a module per noun."""

from service.api import cells, commits, imports, order, pulls, runs, subjects, trials, workers

ROUTERS = (
    runs.router,
    order.router,
    imports.router,
    trials.router,
    commits.router,
    cells.router,
    subjects.router,
    pulls.reading,
    pulls.router,
    workers.router,
)

__all__ = ["ROUTERS"]
