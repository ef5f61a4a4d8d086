"""Prometheus and Grafana: each metric that they name is one that the service exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from runner.outcome import Outcome
from service.database import Database
from service.metrics import Metrics
from service.tables import MessageState, RunState, WorkerState
from tests.containers.conftest import ROOT
from tests.service.conftest import db, postgres, template

__all__ = ["db", "postgres", "template"]
GRAFANA = ROOT / "dashboards" / "grafana"
PROMETHEUS = ROOT / "dashboards" / "prometheus"
BOARD = json.loads((GRAFANA / "dashboards" / "racewatch.json").read_text())
SUFFIXES = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}
QUEUE_STATES = {"todo", "doing"}
VALUES = {
    "outcome": {str(one) for one in Outcome},
    "state": {str(one) for states in (RunState, WorkerState, MessageState) for one in states}
    | QUEUE_STATES,
    "job": {"racewatch"},
}
_LANGUAGE = {"by", "without", "on", "ignoring", "and", "or", "unless", "offset", "bool", "le"}


def expressions() -> Iterator[tuple[str, str]]:
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for group in yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def metrics_in(expression: str) -> set[str]:
    """The metrics that an expression of Prometheus names."""
    rest = re.sub(r"\{[^}]*\}|\[[^]]*\]|\"[^\"]*\"", " ", expression)
    rest = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", rest)
    names = re.findall(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()", rest)
    return set(names) - _LANGUAGE


@pytest.fixture
def exported(db: Database) -> set[str]:
    text = Metrics(db).text().decode()
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    return {name + suffix for name, kind in families.items() for suffix in SUFFIXES[kind]}


def test_every_metric_that_is_shown_or_warned_of_is_exported(exported: set[str]) -> None:
    named = {title: metrics_in(expression) for title, expression in expressions()}
    assert all(named.values())
    missing = {title: names - exported - {"up"} for title, names in named.items()}
    assert {title: names for title, names in missing.items() if names} == {}


def test_the_parser_finds_what_is_not_exported() -> None:
    expression = 'histogram_quantile(0.9, sum by (le, x) (rate(no_such_bucket{a="b"}[5m]))) / other'
    assert metrics_in(expression) == {"no_such_bucket", "other"}


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_every_state_and_outcome_that_is_asked_for_exists(title: str, expression: str) -> None:
    for label, values in re.findall(r"(\w+)\s*[=!]~?\s*\"([^\"]*)\"", expression):
        assert set(values.split("|")) <= VALUES[label], title


def test_panels_ask_the_source_that_is_provisioned() -> None:
    file = GRAFANA / "provisioning" / "datasources" / "prometheus.yml"
    (source,) = yaml.safe_load(file.read_text())["datasources"]
    asked = {
        target["datasource"]["uid"] for panel in BOARD["panels"] for target in panel["targets"]
    }
    assert asked == {source["uid"]}
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose["services"]


def test_folders_are_mounted_where_they_are_looked_for() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    mounts = dict(one.split(":")[:2] for one in services["grafana"]["volumes"])
    file = GRAFANA / "provisioning" / "dashboards" / "racewatch.yml"
    (provider,) = yaml.safe_load(file.read_text())["providers"]
    assert mounts["./dashboards/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["./dashboards/grafana/provisioning"] == "/etc/grafana/provisioning"
    scraped = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    assert scraped[0]["static_configs"] == [{"targets": ["service:8000"]}]


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
