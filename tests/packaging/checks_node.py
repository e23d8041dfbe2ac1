"""Metrics and health of a running node, compared with the list of metrics and the pages for operators."""

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request

import metrics
from checks_packages import node, run

SERIES = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ([-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|Inf|NaN))$")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def serving(binary, *arguments, **options):
    """A node with HTTP: the port for clients, and the base of its addresses."""
    http = free_port()
    with tempfile.TemporaryDirectory() as directory:
        with node([binary], directory, "--http", f"127.0.0.1:{http}", *arguments, **options) as (_, port):
            run(binary, "ctl", "--url", f"http://127.0.0.1:{http}", "health", "--wait", "20s")
            yield port, f"http://127.0.0.1:{http}", pathlib.Path(directory)


def get(url, token=None):
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.headers.get_content_type(), response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), error.read().decode()


def parse(text):
    """Metrics by name: type, help, and the labels of each series. Raises for text that Prometheus would reject."""
    types, helps, series = {}, {}, []
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert name not in types, f"TYPE of {name} twice"
            types[name] = kind
        elif line.startswith("# HELP "):
            name, words = line[7:].split(" ", 1)
            helps[name] = words
        elif line and not line.startswith("#"):
            match = SERIES.match(line)
            assert match, f"not a sample: {line}"
            labels = match.group(2) or ""
            found = LABEL.findall(labels)
            assert "".join(f'{k}="{v}",' for k, v in found) == (labels + "," if labels else ""), line
            series.append((match.group(1), dict(found)))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels in series]
    assert len(keys) == len(set(keys)), "a series is repeated"
    return types, helps, series


def a_node_measures_what_the_list_says(binary):
    """/metrics of a node has every metric of the list with its type, labels and values, each with a help text, and no other."""
    with serving(binary) as (port, url, _):
        run(binary, "pub", "-p", port, "-t", "a", "-m", "b", "-q", "1", "-r")
        run(binary, "ctl", "--url", url, "topic-metrics", "add", "a/#")
        get(f"{url}/api/v1/node")
        status, kind, text = get(f"{url}/metrics")
        assert (status, kind) == (200, "text/plain"), (status, kind)
    types, helps, series = parse(text)
    wrong = []
    for name, (kind, labels) in metrics.METRICS.items():
        if name in metrics.OF_CLUSTER:
            # This node belongs to no cluster.
            if name in types:
                wrong.append(f"{name}: there without a cluster")
            continue
        if types.get(name) != kind:
            wrong.append(f"{name}: TYPE {types.get(name)}, not {kind}")
        if not helps.get(name, "").strip():
            wrong.append(f"{name}: no HELP")
        seen = [found for one, found in series if metrics.base(one) == name]
        if name in metrics.OPTIONAL:
            # This node has no TLS.
            if seen:
                wrong.append(f"{name}: a series without TLS")
            continue
        if not seen:
            wrong.append(f"{name}: no series")
        for label, values in labels.items():
            there = {found.get(label) for found in seen}
            if values is not metrics.ANY and there != values:
                wrong.append(f"{name}: {label} is {sorted(map(str, there))}, not {sorted(values)}")
        for found in seen:
            if set(found) - {"le"} != set(labels):
                wrong.append(f"{name}: labels {sorted(found)}, not {sorted(labels)}")
                break
    wrong += [f"{name} is not in the list" for name in sorted(set(types) - set(metrics.METRICS))]
    assert not wrong, "\n".join(wrong)


def prometheus_takes_the_metrics(binary, promtool):
    """The linter of Prometheus accepts /metrics."""
    with serving(binary) as (_, url, _):
        text = get(f"{url}/metrics")[2]
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def health_needs_no_token_and_metrics_do(binary):
    """Once a key exists: health answers without a token, /metrics with the token of a viewer only, as the pages say."""
    with tempfile.TemporaryDirectory() as keys:
        made = subprocess.run(
            [binary, "key", "add", "prometheus", "--role", "viewer", "--data-dir", keys],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        token = re.search(r"mrd_\S+", made.stdout).group()
        assert token not in (pathlib.Path(keys) / "registry.log").read_text(), "the token itself is stored"
        with serving(binary, data=keys) as (_, url, _):
            for path in ("/health/live", "/health/ready"):
                status, _, text = get(url + path)
                assert status == 200 and json.loads(text)["status"] in ("live", "ready"), (path, status, text)
            assert get(f"{url}/metrics")[:2] == (401, "application/problem+json")
            assert get(f"{url}/metrics", "mrd_wrong")[0] == 401
            assert get(f"{url}/metrics", token)[0] == 200


CHECKS = [a_node_measures_what_the_list_says, prometheus_takes_the_metrics, health_needs_no_token_and_metrics_do]
