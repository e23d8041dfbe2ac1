# Network, firewall and machines of one region.

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
  }
}

data "aws_ami" "debian" {
  most_recent = true
  owners      = ["136693071363"] # Debian

  filter {
    name   = "name"
    values = ["debian-12-amd64-*"]
  }
}

resource "aws_vpc" "this" {
  cidr_block           = var.network
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_route_table" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.this.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_subnet" "this" {
  vpc_id                  = aws_vpc.this.id
  cidr_block              = cidrsubnet(var.network, 8, 1)
  map_public_ip_on_launch = true
  tags                    = { Name = var.name }
}

resource "aws_route_table_association" "this" {
  subnet_id      = aws_subnet.this.id
  route_table_id = aws_route_table.this.id
}

resource "aws_security_group" "this" {
  name_prefix = "${var.name}-"
  description = "Nodes and load generators of ${var.name}"
  vpc_id      = aws_vpc.this.id

  # Nodes of all regions, load generators, and the monitor.
  ingress {
    description = "The networks of this cluster"
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = var.networks
  }

  dynamic "ingress" {
    for_each = length(var.operator_cidrs) > 0 ? { SSH = 22, Grafana = 3000 } : {}
    content {
      description = ingress.key
      from_port   = ingress.value
      to_port     = ingress.value
      protocol    = "tcp"
      cidr_blocks = var.operator_cidrs
    }
  }

  dynamic "ingress" {
    for_each = length(var.client_cidrs) > 0 ? [1883] : []
    content {
      description = "Other clients"
      from_port   = ingress.value
      to_port     = ingress.value
      protocol    = "tcp"
      cidr_blocks = var.client_cidrs
    }
  }

  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_instance" "this" {
  for_each = var.machines

  ami                         = data.aws_ami.debian.id
  instance_type               = var.types[each.value.role]
  subnet_id                   = aws_subnet.this.id
  private_ip                  = each.value.address
  vpc_security_group_ids      = [aws_security_group.this.id]
  key_name                    = var.key_name == "" ? null : var.key_name
  user_data_base64            = base64gzip(var.user_data[each.key])
  user_data_replace_on_change = each.value.role != "core"
  tags                        = { Name = "${var.name}-${each.key}", Role = each.value.role }

  metadata_options {
    http_tokens = "required"
  }

  root_block_device {
    volume_type = "gp3"
    encrypted   = true
    volume_size = each.value.role == "core" ? var.core_disk.size : 20
    iops        = each.value.role == "core" ? var.core_disk.iops : 3000
    throughput  = each.value.role == "core" ? var.core_disk.throughput : 125
  }

  # Another image or file of a running core would replace the machine and its data.
  lifecycle {
    ignore_changes = [ami]
  }

  depends_on = [aws_route.internet, aws_route_table_association.this]
}
