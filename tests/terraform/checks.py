"""References between the files of packaging/terraform, and what the module `nodes` makes of variables."""

import functools
import gzip
import ipaddress
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import hcl2
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FILES = ROOT / "packaging/terraform"
MODULES = [FILES, FILES / "modules/nodes", FILES / "modules/region"]
SECRETS = {
    "cluster_secret": "0123456789abcdef0123456789abcdef",
    "api_token": "fedcba9876543210fedcba9876543210",
    "bench_secret": "02468ace02468ace02468ace02468ace",
    "grafana_password": "a password of Grafana",
}
# Cloud-init files of AWS are 16 KiB at most.
USER_DATA_MAX = 16 * 1024


def terraform_in(terraform, directory, *arguments):
    environment = os.environ | {"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    return subprocess.run([terraform, f"-chdir={directory}", *arguments], env=environment, capture_output=True, text=True, timeout=120)


def unquoted(text):
    return str(text).strip('"')


def named(blocks, kind, depth):
    """Names of blocks of a kind: of resources with their type."""
    found = {}
    for block in blocks.get(kind, []):
        for first, rest in block.items():
            if depth == 1:
                found[unquoted(first)] = rest
            else:
                found.update({f"{unquoted(first)}.{unquoted(second)}": body for second, body in rest.items()})
    return found


def read(module):
    """All blocks of a module, and the text of its files without comments."""
    blocks, text = {}, ""
    for path in sorted(module.glob("*.tf")):
        source = path.read_text()
        text += re.sub(r"(?m)#.*$", "", source)
        for kind, found in hcl2.loads(source).items():
            blocks.setdefault(kind, []).extend(found)
    return blocks, text


def files_are_formatted(terraform):
    """terraform fmt would change nothing."""
    done = terraform_in(terraform, FILES, "fmt", "-check", "-recursive", "-no-color")
    assert done.returncode == 0, done.stdout + done.stderr


def references_have_targets():
    """Each variable, resource, module argument, output and template that is named exists, and each variable is used."""
    wrong = []
    for module in MODULES:
        blocks, text = read(module)
        here = module.name
        variables = set(named(blocks, "variable", 1))
        used = set(re.findall(r"\bvar\.(\w+)", text))
        wrong += [f"{here}: var.{name} is not declared" for name in used - variables]
        wrong += [f"{here}: variable {name} is not used" for name in variables - used]
        resources = set(named(blocks, "resource", 2))
        wrong += [f"{here}: {name} is not declared" for name in set(re.findall(r"(?<![\w.])((?:aws|random)_\w+\.\w+)\b", text)) - resources - {f"{name}" for name in named(blocks, "data", 2)}]
        for name, body in named(blocks, "module", 1).items():
            source = FILES / unquoted(body["source"]).removeprefix("./")
            inner, _ = read(source)
            known = named(inner, "variable", 1)
            given = {key for key in body if not key.startswith("__")} - {"source", "providers"}
            wrong += [f"{name}: {key} is no variable of its module" for key in given - set(known)]
            wrong += [f"{name}: {key} is missing" for key in set(known) - given if "default" not in known[key]]
            outputs = set(named(inner, "output", 1))
            wrong += [f"{name}: no output {output}" for output in set(re.findall(rf"\bmodule\.{name}\.(\w+)", text)) - outputs]
    assert not wrong, "\n".join(wrong)


def every_pair_of_regions_is_joined():
    """There are a peering, its acceptance and routes in both directions for each two regions."""
    blocks, _ = read(FILES)
    resources = named(blocks, "resource", 2)
    for a, b in ("ab", "ac", "bc"):
        peering = resources[f"aws_vpc_peering_connection.{a}_{b}"]
        assert f"region_{a}." in peering["vpc_id"] and f"region_{b}." in peering["peer_vpc_id"], peering
        number = "abc".index(b)
        assert f"regions[{number}]" in peering["peer_region"], peering
        accepter = resources[f"aws_vpc_peering_connection_accepter.{a}_{b}"]
        assert f"aws.{b}" in accepter["provider"] and f".{a}_{b}.id" in accepter["vpc_peering_connection_id"], accepter
        for source, target in ((a, b), (b, a)):
            route = resources[f"aws_route.{source}_to_{target}"]
            assert f"aws.{source}" in route["provider"] and f"region_{source}." in route["route_table_id"], route
            assert f"networks[{'abc'.index(target)}]" in route["destination_cidr_block"], route
            assert f".{a}_{b}.id" in route["vpc_peering_connection_id"], route


def default_regions():
    blocks, _ = read(FILES)
    return [{unquoted(key): unquoted(value) if isinstance(value, str) else value for key, value in region.items() if not key.startswith("__")} for region in named(blocks, "variable", 1)["regions"]["default"]]


@functools.cache
def evaluated(terraform):
    """Outputs of the module `nodes` with the default regions. It has no provider, so Terraform needs no network."""
    values = {"name": "meridian", "regions": default_regions(), "settings": "[limits]\nconnections_max = 500000", "release_url": "https://example.com/meridian.tar.gz", "release_sha256": "0" * 64}
    with tempfile.TemporaryDirectory() as directory:
        module = pathlib.Path(directory) / "nodes"
        shutil.copytree(FILES / "modules/nodes", module)
        (module / "terraform.tfvars.json").write_text(json.dumps(values | SECRETS))
        for command in (["init", "-backend=false", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
            done = terraform_in(terraform, module, *command, "-no-color")
            assert done.returncode == 0, done.stdout + done.stderr
        outputs = json.loads(terraform_in(terraform, module, "output", "-json").stdout)
    return {name: output["value"] for name, output in outputs.items()}


def the_example_has_three_cores_and_twenty_replicants(terraform):
    """The default makes 3 cores, 20 replicants and 6 load generators, with addresses of their own in the network of their region."""
    outputs = evaluated(terraform)
    machines = {name: (index, machine) for index, region in enumerate(outputs["machines"]) for name, machine in region.items()}
    roles = [machine["role"] for _, machine in machines.values()]
    assert {role: roles.count(role) for role in set(roles)} == {"core": 3, "replicant": 20, "load": 6, "monitor": 1}, roles
    networks = [ipaddress.ip_network(network) for network in outputs["networks"]]
    assert not any(a.overlaps(b) for a in networks for b in networks if a is not b)
    for index, machine in machines.values():
        address = ipaddress.ip_address(machine["address"])
        subnet = list(networks[index].subnets(new_prefix=24))[1]
        # AWS keeps the first four addresses of a subnet, and the last one.
        assert address in list(subnet)[4:-1], f"{machine} in {subnet}"
    assert len({machine["address"] for _, machine in machines.values()}) == len(machines)
    assert set(outputs["user_data"]) == set(machines)
    assert len(outputs["brokers"]) == 23 and len(outputs["agents"]) == 6


def wrong_variables_are_refused(terraform):
    """An even number of cores, two equal regions, and a wrong checksum are refused with a message."""
    regions = default_regions()
    good = {"release_url": "https://example.com/x", "release_sha256": "0" * 64}
    cases = [
        (good, None),
        (good | {"release_sha256": "x"}, "64 hexadecimal digits"),
        (good | {"regions": [regions[0] | {"cores": 2}, *regions[1:]]}, "odd"),
        (good | {"regions": [regions[0], *regions[:2]]}, "different regions"),
        (good | {"regions": [regions[0] | {"replicants": 300}, *regions[1:]]}, "200 replicants"),
        (good | {"key_names": ["a"]}, "each region"),
    ]
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(FILES / "variables.tf", directory)
        for values, expected in cases:
            (pathlib.Path(directory) / "terraform.tfvars.json").write_text(json.dumps(values))
            done = terraform_in(terraform, directory, "plan", "-input=false", "-no-color")
            said = " ".join((done.stdout + done.stderr).replace("│", " ").split())
            assert (done.returncode == 0) == (expected is None), said
            assert expected is None or expected in said, said


def cloud_init(outputs, name):
    text = outputs["user_data"][name]
    assert text.startswith("#cloud-config\n")
    return yaml.safe_load(text), text


def cloud_init_files_are_complete(terraform):
    """Each cloud-init file is YAML of less than 16 KiB, runs only programs that exist there, and keeps secrets from other users."""
    outputs = evaluated(terraform)
    for name in outputs["user_data"]:
        document, text = cloud_init(outputs, name)
        assert len(gzip.compress(text.encode())) < USER_DATA_MAX, name
        files = {file["path"]: file for file in document["write_files"]}
        for file in files.values():
            secret = any(value in file["content"] for value in SECRETS.values())
            assert not secret or file["permissions"] == "0600", f"{name}: {file['path']}"
            if file["content"].startswith("#!/bin/sh"):
                checked = subprocess.run(["sh", "-n"], input=file["content"], capture_output=True, text=True)
                assert checked.returncode == 0, f"{name}: {file['path']}: {checked.stderr}"
        for command in document["runcmd"]:
            assert all(isinstance(part, str) for part in command), f"{name}: {command}"
            for part in command:
                if part.startswith("/opt/meridian/"):
                    assert (ROOT / part.removeprefix("/opt/meridian/")).is_file(), f"{name}: the release has no {part}"
    prometheus = yaml.safe_load(next(file["content"] for file in cloud_init(outputs, "monitor")[0]["write_files"] if file["path"].endswith("prometheus.yml")))
    [job] = prometheus["scrape_configs"]
    assert job["job_name"] == "meridian" and len(job["static_configs"][0]["targets"]) == 23


def nodes_accept_their_configuration(terraform, binary):
    """`meridian key add` and `meridian config check` accept what each node of the example gets, without a warning or advice."""
    outputs = evaluated(terraform)
    roles = {machine["name"]: machine["role"] for region in outputs["machines"] for machine in region.values()}
    for name, role in roles.items():
        if role not in ("core", "replicant"):
            continue
        document, _ = cloud_init(outputs, name)
        with tempfile.TemporaryDirectory() as directory:
            for file in document["write_files"]:
                path = pathlib.Path(directory + file["path"])
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(file["content"].replace("/etc/meridian", f"{directory}/etc/meridian"))
                path.chmod(int(file.get("permissions", "0644"), 8))
            [command] = [command for command in document["runcmd"] if "/usr/bin/meridian" in command]
            add = [part.replace("/etc/", f"{directory}/etc/").replace("/var/", f"{directory}/var/") for part in command[command.index("/usr/bin/meridian") + 1 :]]
            made = subprocess.run([binary, *add], capture_output=True, text=True)
            assert made.returncode == 0, f"{name}: {made.stderr}"
            check = [binary, "config", "check", "--config", f"{directory}/etc/meridian/meridian.toml", "--data-dir", f"{directory}/var/lib/meridian"]
            done = subprocess.run(check, capture_output=True, text=True)
            said = done.stdout + done.stderr
            assert done.returncode == 0 and said == "the configuration is valid\n", f"{name}: {said}"


CHECKS = [
    files_are_formatted,
    references_have_targets,
    every_pair_of_regions_is_joined,
    the_example_has_three_cores_and_twenty_replicants,
    wrong_variables_are_refused,
    cloud_init_files_are_complete,
    nodes_accept_their_configuration,
]
