output "vpc_id" {
  value = aws_vpc.this.id
}

output "route_table_id" {
  value = aws_route_table.this.id
}

output "public_addresses" {
  description = "Public addresses of machines by name."
  value       = { for name, machine in aws_instance.this : name => machine.public_ip }
}
