"""Lint, golden files, schemas and structure of what the chart makes, and its configuration by `meridian config check`."""

import difflib
import json
import os
import pathlib
import re
import subprocess
import tempfile

import jsonschema
import kubernetes_validate
import yaml

import chart

# The oldest version that the chart names, one between, and the newest whose schemas the package has.
VERSIONS = ["1.25", "1.31", "1.37"]
TOKEN = "mrd_0123456789abcdef0123456789abcdef"


def each(helm):
    for path in chart.values_files():
        yield path.stem, chart.objects(chart.render(helm, "-f", path))


def lint_accepts_all_values(helm):
    """helm lint --strict accepts the chart with each file of values."""
    for path in chart.values_files():
        done = subprocess.run([helm, "lint", "--strict", "--kube-version", chart.KUBERNETES, chart.CHART, "-f", path], capture_output=True, text=True)
        assert done.returncode == 0, f"{path.name}: {done.stdout}"


def golden_files_are_current(helm):
    """Each file of values gives the objects of its golden file; MERIDIAN_WRITE=1 writes them."""
    wrong = []
    for path in chart.values_files():
        text = chart.RANDOM.sub(r"\1: RANDOM", chart.render(helm, "-f", path))
        text = chart.RULES.sub(r"\1, with its rules\n", text)
        golden = chart.HERE / "golden" / path.name
        if os.environ.get("MERIDIAN_WRITE"):
            golden.write_text(text)
        elif not golden.exists():
            wrong.append(f"{golden.name} does not exist")
        elif golden.read_text() != text:
            lines = difflib.unified_diff(golden.read_text().splitlines(), text.splitlines(), golden.name, "now", lineterm="", n=1)
            wrong.append("\n".join(list(lines)[:40]))
    names = {path.name for path in chart.values_files()}
    wrong += [f"{path.name} has no values" for path in (chart.HERE / "golden").glob("*.yaml") if path.name not in names]
    assert not wrong, "\n".join(wrong)


def objects_match_the_schemas_of_kubernetes(helm):
    """Every object is valid by the strict schemas of three versions of Kubernetes."""
    wrong = []
    for name, documents in each(helm):
        for document in documents:
            if "." in document["apiVersion"].split("/")[0].removesuffix(".k8s.io"):
                continue
            # `sleep` of a hook came with 1.30, and nothing else here is newer than the oldest version.
            versions = VERSIONS[1:] if name == "pods" else VERSIONS
            for version in versions:
                try:
                    kubernetes_validate.validate(document, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    wrong.append(f"{name}: {document['kind']} {document['metadata']['name']} for {version}: {error.message}")
    assert not wrong, "\n".join(wrong)


MONITOR = {
    "type": "object", "additionalProperties": False, "required": ["selector", "endpoints"],
    "properties": {
        "selector": {"required": ["matchLabels"]}, "namespaceSelector": {"required": ["matchNames"]},
        "endpoints": {"type": "array", "minItems": 1, "items": {
            "type": "object", "additionalProperties": False, "required": ["port", "authorization"],
            "properties": {
                "port": {"enum": ["http", "https"]}, "scheme": {"enum": ["http", "https"]}, "path": {"const": "/metrics"},
                "interval": {"pattern": "^[0-9]+s$"}, "scrapeTimeout": {"pattern": "^[0-9]+s$"},
                "authorization": {"type": "object", "required": ["credentials"]}, "metricRelabelings": {"type": "array"}, "relabelings": {"contains": {"properties": {"targetLabel": {"const": "job"}, "replacement": {"const": "meridian"}}}},
                "tlsConfig": {"type": "object", "additionalProperties": False, "properties": {"ca": {}, "serverName": {}, "insecureSkipVerify": {}}},
            }}},
    },
}
CERTIFICATE = {
    "type": "object", "additionalProperties": False, "required": ["secretName", "issuerRef", "dnsNames"],
    "properties": {
        "secretName": {"type": "string", "minLength": 1}, "issuerRef": {"type": "object", "required": ["name"]},
        "dnsNames": {"type": "array", "minItems": 1, "items": {"type": "string", "maxLength": 253}},
        "usages": {"type": "array", "items": {"enum": ["server auth", "client auth", "digital signature"]}},
        "privateKey": {"type": "object", "required": ["algorithm", "size", "rotationPolicy"]},
        "duration": {"pattern": "^[0-9]+h$"}, "renewBefore": {"pattern": "^[0-9]+h$"},
    },
}


RULES = {
    "type": "object", "additionalProperties": False, "required": ["groups"],
    "properties": {"groups": {"type": "array", "minItems": 1, "items": {
        "type": "object", "additionalProperties": False, "required": ["name", "rules"],
        "properties": {"name": {"type": "string"}, "interval": {"pattern": "^[0-9]+[smh]$"}, "rules": {"type": "array", "minItems": 1, "items": {
            "type": "object", "additionalProperties": False, "required": ["expr"], "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
            "properties": {
                "alert": {"type": "string"}, "record": {"type": "string"}, "expr": {"type": "string"}, "for": {"pattern": "^[0-9]+[smhd]$"}, "keep_firing_for": {"pattern": "^[0-9]+[smhd]$"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}}, "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            }}}},
    }}},
}


def objects_of_other_projects_have_their_fields(helm):
    """ServiceMonitors, PrometheusRules and Certificates have the fields that their projects define, and no others."""
    seen = set()
    for _, documents in each(helm):
        for kind, schema in {"ServiceMonitor": MONITOR, "PrometheusRule": RULES, "Certificate": CERTIFICATE}.items():
            for document in chart.of_kind(documents, kind):
                jsonschema.validate(document["spec"], schema)
                seen.add(kind)
    assert len(seen) == 3, seen


def alerts_are_those_of_the_project(helm):
    """files/alerts.yml is packaging/prometheus/alerts.yml, which MERIDIAN_WRITE=1 copies; the chart makes these rules, without those left out, and with others."""
    alerts = chart.ROOT / "packaging/prometheus/alerts.yml"
    copy = chart.CHART / "files/alerts.yml"
    if os.environ.get("MERIDIAN_WRITE"):
        copy.write_bytes(alerts.read_bytes())
    assert copy.read_bytes() == alerts.read_bytes(), "MERIDIAN_WRITE=1 tests/helm/run.py --only alerts"
    groups = yaml.safe_load(alerts.read_text())["groups"]

    def made(*options):
        [rule] = chart.of_kind(chart.objects(chart.render(helm, "--set", "prometheusRule.enabled=true", *options)), "PrometheusRule")
        return rule["spec"]["groups"]

    assert made() == groups
    fewer = made("--set", "prometheusRule.disabledAlerts={MeridianRestarted}")
    assert [rule["alert"] for group in fewer for rule in group["rules"]] == [rule["alert"] for group in groups for rule in group["rules"] if rule["alert"] != "MeridianRestarted"]
    own = {"alert": "Own", "expr": "up == 0", "annotations": {"summary": "{{ $labels.instance }}"}}
    assert made("--set-json", f"prometheusRule.additionalRules=[{json.dumps(own)}]") == [*groups, {"name": "meridian-additional", "rules": [own]}]
    every = json.dumps([rule["alert"] for group in groups for rule in group["rules"]])
    try:
        made("--set-json", f"prometheusRule.disabledAlerts={every}")
    except chart.Refused as refused:
        assert "has all alerts" in str(refused), refused
    else:
        raise AssertionError("an object without rules is made")


def objects_belong_together(helm):
    """Selectors, ports, Secrets, claims, Services and grace periods of the objects fit each other."""
    for name, documents in each(helm):
        sets = chart.of_kind(documents, "StatefulSet")
        for document in sets:
            check_statefulset(name, documents, document)
        for service in chart.of_kind(documents, "Service"):
            selector = service["spec"]["selector"]
            pods = [s["spec"]["template"] for s in sets if selector.items() <= s["spec"]["template"]["metadata"]["labels"].items()]
            assert pods, f"{name}: Service {service['metadata']['name']} selects no pod"
            for port in service["spec"]["ports"]:
                for pod in pods:
                    assert port["targetPort"] in {p["name"] for p in pod["spec"]["containers"][0]["ports"]}, f"{name}: {port}"
        for kind in ("PodDisruptionBudget", "NetworkPolicy"):
            for document in chart.of_kind(documents, kind):
                wanted = document["spec"].get("selector", document["spec"].get("podSelector"))["matchLabels"]
                assert any(wanted.items() <= s["spec"]["template"]["metadata"]["labels"].items() for s in sets), f"{name}: {kind}"
                for job in chart.of_kind(documents, "Job"):
                    labels = job["spec"]["template"]["metadata"]["labels"]
                    assert not wanted.items() <= labels.items(), f"{name}: {kind} selects the pods of the bench"
        jobs = [job["spec"]["template"]["spec"] for job in chart.of_kind(documents, "Job")]
        for spec in [*jobs, *(pod["spec"] for pod in chart.of_kind(documents, "Pod"))]:
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                for host, port in re.findall(r"https?://([\w-]+):(\d+)", " ".join(container["args"])):
                    service = chart.named(documents, "Service", host)
                    assert int(port) in {one["port"] for one in service["spec"]["ports"]}, f"{name}: {host}:{port}"
        for ingress in chart.of_kind(documents, "Ingress"):
            backend = ingress["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
            service = chart.named(documents, "Service", backend["name"])
            assert backend["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}, f"{name}: {backend}"
        for scaler in chart.of_kind(documents, "HorizontalPodAutoscaler"):
            target = chart.named(documents, "StatefulSet", scaler["spec"]["scaleTargetRef"]["name"])
            assert "replicas" not in target["spec"], f"{name}: an upgrade would undo the scaler"
        for document in documents:
            # Prometheus may read rules of one namespace only.
            namespaces = {chart.NAMESPACE, "monitoring"} if document["kind"] == "PrometheusRule" else {chart.NAMESPACE}
            assert document["metadata"]["namespace"] in namespaces, f"{name}: {document['metadata']}"


def check_statefulset(name, documents, document):
    spec = document["spec"]
    pod = spec["template"]["spec"]
    service = chart.named(documents, "Service", spec["serviceName"])
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"], name
    assert spec["podManagementPolicy"] == "Parallel", f"{name}: the first core would wait for the others for ever"
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items(), name
    node = pod["containers"][0]
    environment = {entry["name"]: entry for entry in node["env"]}
    drain = environment["MERIDIAN__NODE__DRAIN_MAX"]["value"]
    assert pod["terminationGracePeriodSeconds"] == int(drain.removesuffix("s")) + 30, f"{name}: {drain}"
    assert len(environment) == len(node["env"]), f"{name}: a variable is there twice"
    names = {port["name"] for port in node["ports"]}
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = node[kind]["httpGet"]
        assert probe["path"].startswith("/health/") and probe["port"] in names, f"{name}: {probe}"
    volumes = {volume["name"] for volume in pod["volumes"]} | {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    for container in [*pod["containers"], *pod["initContainers"]]:
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert mounted <= volumes, f"{name}: {container['name']}: {mounted - volumes}"
        own = container["name"] in ("meridian", "api-key")
        assert not own or container["securityContext"]["readOnlyRootFilesystem"], name
    assert pod["securityContext"]["runAsNonRoot"], name
    made = {secret["metadata"]["name"] for secret in chart.of_kind(documents, "Secret")}
    made |= {certificate["spec"]["secretName"] for certificate in chart.of_kind(documents, "Certificate")}
    given = {"broker-tls", "link-tls", "link-secret", "operators", "devices"}
    for volume in pod["volumes"]:
        secret = volume.get("secret", {}).get("secretName")
        assert secret is None or secret in made | given, f"{name}: nothing makes {secret}"
    for claim in spec.get("volumeClaimTemplates", []):
        assert claim["spec"]["resources"]["requests"]["storage"], name


def secrets_stay_after_an_uninstall(helm):
    """Secrets that the chart makes are kept by helm uninstall, and two renderings differ."""
    first, second = (chart.of_kind(chart.objects(chart.render(helm)), "Secret") for _ in range(2))
    assert len(first) == 2
    for one, other in zip(first, second):
        assert one["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
        assert one["data"] != other["data"]


def a_changed_number_of_cores_restarts_no_pod(helm):
    """Pods of 5 cores are those of 3 cores, so that scaling restarts none; a changed setting gives other pods."""

    def pods(*options):
        return chart.statefulset(chart.objects(chart.render(helm, *options)), "core")["spec"]["template"]

    assert pods() == pods("--set", "cores.replicas=5") == pods("--set", "replicants.replicas=9") == pods("--set", "cores.replicas=4")
    assert pods() != pods("--set", "config.queue.messages_max=5")


def two_groups_of_cores_cannot_both_begin(helm):
    """A new cluster waits for more than half of its cores."""
    for cores in (1, 2, 3, 4, 5, 7, 9):
        text = chart.render(helm, "--set", f"cores.replicas={cores}")
        [expect] = re.findall(r'CLUSTER__EXPECT\n\s+value: "(\d+)"', text)
        assert cores < 2 * int(expect) and int(expect) <= cores, f"{expect} of {cores}"


BAD = [
    ("cores.replicas=0", "cores"),
    ("cores.replicas=10", "cores"),
    ("cores.replcas=3", "replcas"),
    ("cluster.secret=short", "16 characters"),
    ("config.cluster.join=x:1", "is set by the chart"),
    ("cores.config.node.drain_max=1s", "drainSeconds"),
    ("replicants.config.http.listen=off", "is set by the chart"),
    ("listeners.mqtts.enabled=true", "tls.secretName"),
    ("http.tls=true", "tls.secretName"),
    ("cluster.tls.enabled=true", "cluster.tls.secretName"),
    ("listeners.mqtts.enabled=true,tls.certManager.enabled=true", "issuerRef.name"),
    ("serviceMonitor.enabled=true", "role viewer"),
    ("serviceMonitor.enabled=true,serviceMonitor.tokenSecret.name=a,services.dashboard.enabled=false", "services.dashboard.enabled=true"),
    ("ingress.dashboard.enabled=true,services.dashboard.enabled=false", "services.dashboard.enabled=true"),
    ("ingress.websocket.enabled=true", "listeners.ws.enabled=true"),
    ("ingress.websocket.enabled=true,listeners.ws.enabled=true,services.client.enabled=false", "services.client"),
    ("prometheusRule.enabled=true,prometheusRule.disabledAlerts={MeridianDwn}", "no alert is named MeridianDwn"),
    ("prometheusRule.additionalRules[0].expr=up", "additionalRules"),
    ("listeners.mqtt.port=70000", "port"),
    ("services.client.type=Loadbalancer", "type"),
    ("probes.readiness.path=/api/v1/node", "path"),
    ("drainSeconds=-1", "drainSeconds"),
    ("image.digest=md5:1", "digest"),
    ("extraServices.http.type=ClusterIP", "http"),
    ("bindAddress=127.0.0.1", "bindAddress"),
]


def wrong_values_are_refused(helm):
    """Values that cannot work are refused, and the message names them."""
    for values, expected in BAD:
        try:
            chart.render(helm, "--set", values)
        except chart.Refused as refused:
            assert expected in str(refused), f"{values}: {refused}"
        else:
            raise AssertionError(f"{values} is accepted")


def the_schema_knows_every_value(helm):
    """values.schema.json has every value of values.yaml."""
    del helm
    schema = json.loads((chart.CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    def walk(values, here, path):
        if not isinstance(values, dict) or "properties" not in here:
            return
        for key, value in values.items():
            assert key in here["properties"], f"{path}{key} is not in the schema"
            walk(value, here["properties"][key], f"{path}{key}.")

    walk(yaml.safe_load((chart.CHART / "values.yaml").read_text()), schema, "")


def issue(openssl, directory):
    """An authority of its own, and a certificate for both purposes."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "ext").write_text("subjectAltName = DNS:mq\nextendedKeyUsage = serverAuth, clientAuth\n")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for command in (
        ["req", "-x509", *key, "-days", "30", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority"],
        ["req", "-new", *key, "-keyout", "tls.key", "-out", "csr", "-subj", "/CN=node"],
        ["x509", "-req", "-in", "csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-out", "tls.crt", "-extfile", "ext"],
    ):
        subprocess.run([openssl, *command], cwd=directory, check=True, capture_output=True)
    for path in directory.iterdir():
        path.chmod(0o600)


def the_node_accepts_its_configuration(helm, binary, openssl):
    """For each file of values, `meridian config check` accepts what a new pod of each role starts with, after its init container."""
    wrong = []
    with tempfile.TemporaryDirectory() as directory:
        certificates = pathlib.Path(directory) / "certificates"
        issue(openssl, certificates)
        for name, documents in each(helm):
            for document in chart.of_kind(documents, "StatefulSet"):
                role = document["metadata"]["labels"]["app.kubernetes.io/component"]
                base = pathlib.Path(directory) / name / role
                files = base / "etc"
                chart.write_files(documents, files, TOKEN)
                for target in ("tls", "cluster-tls"):
                    subprocess.run(["cp", "-r", certificates, files / target], check=True)
                (files / "passwords").mkdir()
                (files / "passwords/passwords").touch(0o600)
                plan = chart.PodPlan(documents, role, document["metadata"]["name"] + "-0", base / "data", files)
                (base / "data").mkdir()
                environment = plan.environment(TOKEN)
                for _ in range(2):
                    made = subprocess.run([binary, *plan.init_arguments()], env=environment, capture_output=True, text=True)
                    assert made.returncode == 0 and TOKEN not in made.stdout + made.stderr, f"{name}: {made.stderr}"
                start = plan.arguments()
                assert start[0] == "start"
                done = subprocess.run([binary, "config", "check", *start[1:]], env=environment, capture_output=True, text=True)
                if done.returncode or re.search("^(warning|advice)", done.stdout, re.MULTILINE):
                    wrong.append(f"{name}, {role}: {done.stdout}{done.stderr}")
    assert not wrong, "\n".join(wrong)


CHECKS = [
    lint_accepts_all_values,
    golden_files_are_current,
    objects_match_the_schemas_of_kubernetes,
    objects_of_other_projects_have_their_fields,
    alerts_are_those_of_the_project,
    objects_belong_together,
    secrets_stay_after_an_uninstall,
    a_changed_number_of_cores_restarts_no_pod,
    two_groups_of_cores_cannot_both_begin,
    wrong_values_are_refused,
    the_schema_knows_every_value,
    the_node_accepts_its_configuration,
]
