# A cluster of Meridian in three regions, with load generators, Prometheus and Grafana: docs/terraform.md.

resource "random_password" "cluster" {
  length  = 48
  special = false
}

resource "random_password" "api" {
  length  = 48
  special = false
}

resource "random_password" "bench" {
  length  = 48
  special = false
}

resource "random_password" "grafana" {
  length  = 24
  special = false
}

# Names, addresses and cloud-init files of all machines. It makes nothing.
module "nodes" {
  source           = "./modules/nodes"
  name             = var.name
  regions          = var.regions
  settings         = var.settings
  release_url      = var.release_url
  release_sha256   = var.release_sha256
  cluster_secret   = random_password.cluster.result
  api_token        = random_password.api.result
  bench_secret     = random_password.bench.result
  grafana_password = random_password.grafana.result
}

module "region_a" {
  source         = "./modules/region"
  providers      = { aws = aws.a }
  name           = var.name
  machines       = module.nodes.machines[0]
  user_data      = module.nodes.user_data
  types          = local.types
  core_disk      = var.core_disk
  network        = module.nodes.networks[0]
  networks       = module.nodes.networks
  key_name       = var.key_names[0]
  operator_cidrs = var.operator_cidrs
  client_cidrs   = var.client_cidrs
}

module "region_b" {
  source         = "./modules/region"
  providers      = { aws = aws.b }
  name           = var.name
  machines       = module.nodes.machines[1]
  user_data      = module.nodes.user_data
  types          = local.types
  core_disk      = var.core_disk
  network        = module.nodes.networks[1]
  networks       = module.nodes.networks
  key_name       = var.key_names[1]
  operator_cidrs = var.operator_cidrs
  client_cidrs   = var.client_cidrs
}

module "region_c" {
  source         = "./modules/region"
  providers      = { aws = aws.c }
  name           = var.name
  machines       = module.nodes.machines[2]
  user_data      = module.nodes.user_data
  types          = local.types
  core_disk      = var.core_disk
  network        = module.nodes.networks[2]
  networks       = module.nodes.networks
  key_name       = var.key_names[2]
  operator_cidrs = var.operator_cidrs
  client_cidrs   = var.client_cidrs
}

locals {
  types = {
    core      = var.core_type
    replicant = var.replicant_type
    load      = var.load_type
    monitor   = var.monitor_type
  }
}

# Each two regions are joined by a peering, which AWS encrypts. Nodes use private addresses.

resource "aws_vpc_peering_connection" "a_b" {
  provider    = aws.a
  vpc_id      = module.region_a.vpc_id
  peer_vpc_id = module.region_b.vpc_id
  peer_region = var.regions[1].name
  tags        = { Name = "${var.name}-a-b" }
}

resource "aws_vpc_peering_connection_accepter" "a_b" {
  provider                  = aws.b
  vpc_peering_connection_id = aws_vpc_peering_connection.a_b.id
  auto_accept               = true
}

resource "aws_vpc_peering_connection" "a_c" {
  provider    = aws.a
  vpc_id      = module.region_a.vpc_id
  peer_vpc_id = module.region_c.vpc_id
  peer_region = var.regions[2].name
  tags        = { Name = "${var.name}-a-c" }
}

resource "aws_vpc_peering_connection_accepter" "a_c" {
  provider                  = aws.c
  vpc_peering_connection_id = aws_vpc_peering_connection.a_c.id
  auto_accept               = true
}

resource "aws_vpc_peering_connection" "b_c" {
  provider    = aws.b
  vpc_id      = module.region_b.vpc_id
  peer_vpc_id = module.region_c.vpc_id
  peer_region = var.regions[2].name
  tags        = { Name = "${var.name}-b-c" }
}

resource "aws_vpc_peering_connection_accepter" "b_c" {
  provider                  = aws.c
  vpc_peering_connection_id = aws_vpc_peering_connection.b_c.id
  auto_accept               = true
}

resource "aws_route" "a_to_b" {
  provider                  = aws.a
  route_table_id            = module.region_a.route_table_id
  destination_cidr_block    = module.nodes.networks[1]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.a_b.id
}

resource "aws_route" "a_to_c" {
  provider                  = aws.a
  route_table_id            = module.region_a.route_table_id
  destination_cidr_block    = module.nodes.networks[2]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.a_c.id
}

resource "aws_route" "b_to_a" {
  provider                  = aws.b
  route_table_id            = module.region_b.route_table_id
  destination_cidr_block    = module.nodes.networks[0]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.a_b.id
}

resource "aws_route" "b_to_c" {
  provider                  = aws.b
  route_table_id            = module.region_b.route_table_id
  destination_cidr_block    = module.nodes.networks[2]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.b_c.id
}

resource "aws_route" "c_to_a" {
  provider                  = aws.c
  route_table_id            = module.region_c.route_table_id
  destination_cidr_block    = module.nodes.networks[0]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.a_c.id
}

resource "aws_route" "c_to_b" {
  provider                  = aws.c
  route_table_id            = module.region_c.route_table_id
  destination_cidr_block    = module.nodes.networks[1]
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.b_c.id
}
