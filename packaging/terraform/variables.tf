variable "name" {
  description = "Name of the cluster, and prefix of everything that is made."
  type        = string
  default     = "meridian"
}

variable "regions" {
  description = "Three AWS regions, each with its number of cores, replicants and load generators."
  type = list(object({
    name       = string
    cores      = number
    replicants = number
    load       = number
  }))
  default = [
    { name = "eu-central-1", cores = 1, replicants = 7, load = 2 },
    { name = "us-east-1", cores = 1, replicants = 7, load = 2 },
    { name = "ap-southeast-1", cores = 1, replicants = 6, load = 2 },
  ]

  validation {
    condition     = length(var.regions) == 3 && length(distinct(var.regions[*].name)) == 3
    error_message = "Name three different regions."
  }
  validation {
    condition     = sum(var.regions[*].cores) % 2 == 1
    error_message = "The number of all cores has to be odd."
  }
  validation {
    condition     = alltrue([for region in var.regions : region.cores <= 9 && region.replicants <= 200 && region.load <= 20])
    error_message = "At most 9 cores, 200 replicants and 20 load generators fit into a region."
  }
}

variable "core_type" {
  description = "Instance type of cores. They write to disk for each acknowledged message of a durable session."
  type        = string
  default     = "c6i.2xlarge"
}

variable "replicant_type" {
  description = "Instance type of replicants. Their memory decides about connections, their CPUs about messages."
  type        = string
  default     = "c6i.2xlarge"
}

variable "load_type" {
  description = "Instance type of load generators."
  type        = string
  default     = "c6i.2xlarge"
}

variable "monitor_type" {
  description = "Instance type of the machine with Prometheus and Grafana."
  type        = string
  default     = "t3.large"
}

variable "core_disk" {
  description = "Volume of a core: size in GiB, input/output operations and MiB in a second."
  type        = object({ size = number, iops = number, throughput = number })
  default     = { size = 100, iops = 6000, throughput = 250 }
}

variable "release_url" {
  description = "Address of the release for Linux, meridian-VERSION-linux-x86_64.tar.gz, that machines can download."
  type        = string
}

variable "release_sha256" {
  description = "SHA-256 of that file, as in SHA256SUMS."
  type        = string

  validation {
    condition     = can(regex("^[0-9a-f]{64}$", var.release_sha256))
    error_message = "A SHA-256 has 64 hexadecimal digits."
  }
}

variable "key_names" {
  description = "Name of an SSH key pair in each region; none without."
  type        = list(string)
  default     = ["", "", ""]

  validation {
    condition     = length(var.key_names) == 3
    error_message = "One name for each region, which may be empty."
  }
}

variable "operator_cidrs" {
  description = "Networks of operators, who reach SSH and Grafana."
  type        = list(string)
  default     = []
}

variable "client_cidrs" {
  description = "Networks of other clients than the load generators. They are not encrypted, so this is for measurements only."
  type        = list(string)
  default     = []
}

variable "settings" {
  description = "Further settings of all nodes, as lines of TOML."
  type        = string
  default     = ""
}
