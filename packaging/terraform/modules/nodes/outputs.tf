output "networks" {
  description = "Network of each region."
  value       = local.networks
}

output "machines" {
  description = "Machines of each region by name: role, region and private address."
  value       = local.machines
}

output "user_data" {
  description = "Cloud-init file of each machine by name."
  value       = local.user_data
  sensitive   = true
}

output "brokers" {
  description = "Addresses of all nodes."
  value       = local.brokers
}

output "agents" {
  description = "Addresses of all load generators."
  value       = local.agents
}
