"""Checks the dashboard, the alert rules and their pages against the list of metrics."""

import json
import re
import subprocess
import tempfile
import pathlib

import alert_cases
import metrics
import promql
import yamlish

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ALERTS = ROOT / "packaging/prometheus/alerts.yml"
DASHBOARD = ROOT / "packaging/grafana/meridian.json"
SEVERITIES = {"critical", "warning", "info"}


def rules():
    groups = yamlish.load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def with_variables(expr):
    """Expression with the variables of Grafana replaced."""
    return expr.replace("$__rate_interval", "1m").replace("$job", "meridian").replace("$instance", "n1")


def dashboard_panels():
    board = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", [])


def dashboard_expressions():
    """(where, expression) of every query on the dashboard, annotations included."""
    board = json.loads(DASHBOARD.read_text())
    for panel in dashboard_panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def expressions():
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]
    for where, expr in dashboard_expressions():
        yield f"panel {where!r}", with_variables(expr)


def misuse(selector):
    """Error of a selector according to the list of metrics, or None."""
    known = metrics.family(selector.metric)
    if known is None:
        return f"no metric {selector.metric}"
    kind, labels = known
    if selector.range and kind != metrics.COUNTER:
        return f"{selector.metric} is a {kind} and has no rate"
    for label, operator, value in selector.matchers:
        if label in metrics.PROMETHEUS_LABELS:
            continue
        if label not in labels:
            return f"{selector.metric} has no label {label}"
        if (values := labels[label]) is metrics.ANY:
            continue
        named = value.split("|") if "~" in operator else [value]
        if unknown := set(named) - values:
            return f"{selector.metric} has no {label} {sorted(unknown)}"
    for label in selector.grouped:
        if label not in labels and label not in metrics.PROMETHEUS_LABELS:
            return f"{selector.metric} cannot be grouped by {label}"
    return None


def expressions_use_what_exists():
    """Every expression of dashboard and alerts parses and uses metrics, labels and label values that exist."""
    wrong = []
    for where, expr in expressions():
        try:
            found = promql.selectors(expr)
        except promql.Malformed as error:
            wrong.append(f"{where}: {error}: {expr}")
            continue
        wrong += [f"{where}: {reason}" for reason in map(misuse, found) if reason]
    assert not wrong, "\n".join(wrong)


def the_checker_finds_mistakes():
    """The checks above find known mistakes."""
    for bad in ("sum(rate(x[5m])", "rate(x)", "sum by (a) x", "no_such(x)", "x{a=b}", 'x{a=~"("}', "x[5m] + 1", "x y"):
        try:
            promql.selectors(bad)
        except promql.Malformed:
            continue
        raise AssertionError(f"{bad!r} was accepted as PromQL")
    for bad in (
        "meridian_client",
        "rate(meridian_clients[5m])",
        'meridian_disconnects_total{reason="bored"}',
        "sum by (listener) (meridian_clients)",
        'meridian_clients{color="red"}',
    ):
        assert any(map(misuse, promql.selectors(bad))), f"{bad!r} was accepted"
    for bad in ("a: b: c", "a:\n  b: 1\n  b: 2", "a: {b: 1}", "a:"):
        try:
            yamlish.load(bad)
        except ValueError:
            continue
        raise AssertionError(f"{bad!r} was read")


def alerts_are_complete():
    """Each alert has an expression, a severity, a summary and a description that name existing labels; names are unique."""
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)), "an alert's name is used twice"
    for rule in rules():
        name = rule["alert"]
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, name
        assert rule["labels"]["severity"] in SEVERITIES, name
        notes = rule["annotations"]
        assert set(notes) == {"summary", "description", "runbook"}, f"{name}: {sorted(notes)}"
        assert notes["runbook"] == f"docs/alerts.md#{name.lower()}", f"{name}: {notes['runbook']}"
        kept = {"instance"}
        for selector in promql.selectors(rule["expr"]):
            if selector.grouped:
                kept |= set(selector.grouped)
            else:
                kept |= set(metrics.family(selector.metric)[1])
        for label in re.findall(r"\$labels\.(\w+)", notes["summary"] + notes["description"]):
            assert label in kept, f"{name}: its series have no label {label}"


def alerts_are_documented():
    """docs/alerts.md has one section for each alert, with its severity and three parts, and no other sections."""
    text = (ROOT / "docs/alerts.md").read_text()
    sections = dict(re.findall(r"^### (Meridian\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    by_name = {rule["alert"]: rule for rule in rules()}
    assert set(sections) == set(by_name), f"only on one side: {sorted(set(sections) ^ set(by_name))}"
    for name, section in sections.items():
        severity = by_name[name]["labels"]["severity"]
        assert f"*{severity}*" in section, f"{name}: its severity, {severity}, is missing"
        for question in ("**Means.**", "**Usually.**", "**Do.**"):
            assert question in section, f"{name}: {question} is missing"


def documents_name_metrics_that_exist():
    """Every meridian_... name in the documents is a metric."""
    wrong = []
    for page in ("alerts.md", "operations.md", "tuning.md"):
        for name in set(re.findall(r"\b(?:meridian|process)_[a-z_]+\b", (ROOT / "docs" / page).read_text())):
            if name.startswith("process_") or name.endswith(("_total", "_bytes", "_seconds")) or name in metrics.METRICS:
                if metrics.family(name) is None:
                    wrong.append(f"{page}: {name}")
    assert not wrong, "\n".join(wrong)


def dashboard_is_well_formed():
    """Panels have unique ids, a description, a unit and a position that overlaps no other panel; queries use the data source variable."""
    ids, taken = set(), {}
    for panel in dashboard_panels():
        title = panel["title"]
        assert panel["id"] not in ids, f"{title}: id {panel['id']} twice"
        ids.add(panel["id"])
        if panel["type"] == "row":
            continue
        assert panel["description"] and panel["targets"], title
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"], title
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", title
            assert 'job=~"$job",instance=~"$instance"' in target["expr"], f"{title}: the variables are not used"
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        position = panel["gridPos"]
        assert position["x"] + position["w"] <= 24, panel["title"]
        for x in range(position["x"], position["x"] + position["w"]):
            for y in range(position["y"], position["y"] + position["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


def dashboard_shows_every_metric():
    """Every metric is on the dashboard."""
    shown = {s.metric for _, expr in dashboard_expressions() for s in promql.selectors(with_variables(expr))}
    missing = [
        name
        for name, (kind, _) in metrics.METRICS.items()
        if not {name, f"{name}_bucket"} & shown
    ]
    assert not missing, f"on no panel: {missing}"


def yaml_is_what_prometheus_reads(yaml):
    """PyYAML reads alerts.yml as this test does."""
    assert yaml.safe_load(ALERTS.read_text()) == yamlish.load(ALERTS.read_text())


def run_promtool(promtool, *arguments):
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"promtool {arguments[0]}: {done.stdout}{done.stderr}"


def each_alert_fires(promtool):
    """Each alert fires alone for its series; none fires for healthy series."""
    names = [rule["alert"] for rule in rules()]
    assert set(names) == set(alert_cases.FIRING), sorted(set(names) ^ set(alert_cases.FIRING))
    with tempfile.TemporaryDirectory() as directory:
        tests = pathlib.Path(directory) / "tests.yml"
        # JSON is YAML.
        tests.write_text(json.dumps(alert_cases.rules_test(ALERTS, names)))
        run_promtool(promtool, "check", "rules", str(ALERTS))
        run_promtool(promtool, "test", "rules", str(tests))


def prometheus_takes_the_dashboard(promtool):
    """Prometheus's own parser reads every expression of the dashboard."""
    records = [
        {"record": f"panel:{i}", "expr": with_variables(expr)} for i, (_, expr) in enumerate(dashboard_expressions())
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "rules.yml"
        path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": records}]}))
        run_promtool(promtool, "check", "rules", str(path))


CHECKS = [
    the_checker_finds_mistakes,
    expressions_use_what_exists,
    alerts_are_complete,
    alerts_are_documented,
    documents_name_metrics_that_exist,
    dashboard_is_well_formed,
    dashboard_shows_every_metric,
    yaml_is_what_prometheus_reads,
    each_alert_fires,
    prometheus_takes_the_dashboard,
]
