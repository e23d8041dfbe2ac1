//! The function `jq`.
