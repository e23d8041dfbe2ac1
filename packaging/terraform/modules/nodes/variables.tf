variable "name" {
  type = string
}

variable "regions" {
  type = list(object({
    name       = string
    cores      = number
    replicants = number
    load       = number
  }))
}

variable "settings" {
  type    = string
  default = ""
}

variable "release_url" {
  type = string
}

variable "release_sha256" {
  type = string
}

variable "cluster_secret" {
  type      = string
  sensitive = true
}

variable "api_token" {
  type      = string
  sensitive = true
}

variable "bench_secret" {
  type      = string
  sensitive = true
}

variable "grafana_password" {
  type      = string
  sensitive = true
}
