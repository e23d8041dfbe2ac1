output "monitor" {
  description = "Public address of the machine with Prometheus, Grafana and `meridian bench`."
  value       = module.region_a.public_addresses["monitor"]
}

output "brokers" {
  description = "Addresses of all nodes for `meridian bench -h`."
  value       = join(",", module.nodes.brokers)
}

output "agents" {
  description = "Addresses of all load generators for `meridian bench --agents`."
  value       = join(",", module.nodes.agents)
}

output "grafana_password" {
  description = "Password of the user admin of Grafana."
  value       = random_password.grafana.result
  sensitive   = true
}

output "api_token" {
  description = "Token of the API key of operators."
  value       = random_password.api.result
  sensitive   = true
}
