terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.40"
    }
    random = {
      source  = "hashicorp/random"
      version = ">= 3.5"
    }
  }
}

provider "aws" {
  alias  = "a"
  region = var.regions[0].name
}

provider "aws" {
  alias  = "b"
  region = var.regions[1].name
}

provider "aws" {
  alias  = "c"
  region = var.regions[2].name
}
