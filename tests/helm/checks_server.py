"""What the chart reads from a Kubernetes cluster. A server here answers as the API of one."""

import base64
import contextlib
import http.server
import json
import os
import pathlib
import subprocess
import tempfile
import threading

import yaml

import chart

KINDS = {
    "v1": [("secrets", "Secret"), ("services", "Service"), ("configmaps", "ConfigMap"), ("serviceaccounts", "ServiceAccount"), ("pods", "Pod")],
    "apps/v1": [("statefulsets", "StatefulSet")],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget")],
}


def resources(version):
    listed = [{"name": plural, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get", "list"]} for plural, kind in KINDS[version]]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def discovery():
    groups = []
    for version in KINDS:
        if "/" in version:
            at = {"groupVersion": version, "version": version.split("/")[1]}
            groups.append({"name": version.split("/")[0], "versions": [at], "preferredVersion": at})
    answers = {
        "/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version in KINDS:
        answers[("/apis/" if "/" in version else "/api/") + version] = resources(version)
    return answers


@contextlib.contextmanager
def cluster(*existing):
    """An API server that has these objects, as a file for KUBECONFIG."""
    answers = discovery()
    for document in existing:
        version = document["apiVersion"]
        plural = next(plural for plural, kind in KINDS[version] if kind == document["kind"])
        prefix = "/apis/" if "/" in version else "/api/"
        answers[f"{prefix}{version}/namespaces/{chart.NAMESPACE}/{plural}/{document['metadata']['name']}"] = document

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # pylint: disable=invalid-name
            found = answers.get(self.path.split("?")[0])
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            body = json.dumps(found or status).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):  # pylint: disable=arguments-differ
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "config"
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
            "clusters": [{"name": "k", "cluster": {"server": url}}], "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }))
        try:
            yield directory, path
        finally:
            server.shutdown()
            server.server_close()


def render(helm, existing, *options):
    with cluster(*existing) as (directory, path):
        command = [helm, "template", chart.RELEASE, chart.CHART, "--namespace", chart.NAMESPACE, "--kube-version", chart.KUBERNETES, "--dry-run=server", *options]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KUBECONFIG": str(path), "HOME": directory}, timeout=60)
    if done.returncode:
        raise chart.Refused(done.stderr)
    return chart.objects(done.stdout)


def an_upgrade_keeps_the_secrets(helm):
    """An upgrade has the cluster secret and the token that exist in the Kubernetes cluster."""
    kept = {"mq-meridian-cluster": "cluster.secret", "mq-meridian-api-key": "token"}
    made = {name: base64.b64encode(f"the {key} that was made first".encode()).decode() for name, key in kept.items()}
    existing = [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": chart.NAMESPACE}, "data": {key: made[name]}} for name, key in kept.items()]
    documents = render(helm, existing)
    for name, key in kept.items():
        assert chart.named(documents, "Secret", name)["data"][key] == made[name], name


def cores_are_removed_one_at_a_time(helm):
    """An upgrade that removes more than one core is refused; one that removes one core or adds some is not."""

    def scale(now, then):
        existing = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "mq-meridian-core", "namespace": chart.NAMESPACE}, "spec": {"replicas": now}}
        return render(helm, [existing], "--set", f"cores.replicas={then}")

    for now, then in ((3, 5), (3, 3), (5, 4), (4, 3)):
        scale(now, then)
    for now, then in ((5, 3), (3, 1)):
        try:
            scale(now, then)
        except chart.Refused as refused:
            assert f"from {now} to {then}" in str(refused), refused
        else:
            raise AssertionError(f"{now} to {then} is accepted")


CHECKS = [an_upgrade_keeps_the_secrets, cores_are_removed_one_at_a_time]
