variable "name" {
  type = string
}

variable "machines" {
  description = "Machines of this region by name."
  type        = map(object({ name = string, role = string, region = string, address = string }))
}

variable "user_data" {
  description = "Cloud-init files by name of the machine."
  type        = map(string)
  sensitive   = true
}

variable "types" {
  description = "Instance type by role."
  type        = map(string)
}

variable "core_disk" {
  type = object({ size = number, iops = number, throughput = number })
}

variable "network" {
  description = "Network of this region."
  type        = string
}

variable "networks" {
  description = "Networks of all regions."
  type        = list(string)
}

variable "key_name" {
  type = string
}

variable "operator_cidrs" {
  type = list(string)
}

variable "client_cidrs" {
  type = list(string)
}
