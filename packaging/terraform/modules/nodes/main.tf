# Names, private addresses and cloud-init files of all machines. This module has no provider, so a test evaluates it offline.

locals {
  # One network for each region, and fixed addresses in it: a node knows the addresses of all cores before they exist.
  networks = [for index, region in var.regions : cidrsubnet("10.40.0.0/13", 3, index)]
  first    = { monitor = 5, core = 10, replicant = 20, load = 230 }

  # The first region has the machine that looks at all others.
  counts = [for index, region in var.regions : {
    monitor   = index == 0 ? 1 : 0
    core      = region.cores
    replicant = region.replicants
    load      = region.load
  }]
  machines = [for index, region in var.regions : merge([for role, first in local.first : {
    for number in range(local.counts[index][role]) : role == "monitor" ? role : "${role}-${index}-${number}" => {
      name    = role == "monitor" ? role : "${role}-${index}-${number}"
      role    = role
      region  = region.name
      address = cidrhost(local.networks[index], 256 + first + number)
    }
  }]...)]

  all     = merge(local.machines...)
  cores   = [for machine in local.all : machine.address if machine.role == "core"]
  brokers = [for machine in local.all : machine.address if contains(["core", "replicant"], machine.role)]
  agents  = [for machine in local.all : machine.address if machine.role == "load"]

  release = templatefile("${path.module}/templates/install.sh.tftpl", { url = var.release_url, sha256 = var.release_sha256 })
  user_data = { for name, machine in local.all : name => templatefile(
    "${path.module}/templates/${contains(["core", "replicant"], machine.role) ? "node" : machine.role}.yaml.tftpl",
    {
      name             = machine.name
      role             = machine.role
      region           = machine.region
      address          = machine.address
      cluster          = var.name
      join             = join(",", [for core in local.cores : "${core}:7883"])
      cores            = length(local.cores)
      brokers          = local.brokers
      agents           = local.agents
      settings         = var.settings
      install          = local.release
      cluster_secret   = var.cluster_secret
      api_token        = var.api_token
      bench_secret     = var.bench_secret
      grafana_password = var.grafana_password
    }
  ) }
}
