#!/usr/bin/env bash
# Builds the dashboard into crates/api/dashboard, or into the given directory. The same sources give the same bytes.
set -euo pipefail
out=$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../crates/api/dashboard}")
cd "$(dirname "${BASH_SOURCE[0]}")"
test -d node_modules/vite || npm ci --no-audit --no-fund
DASHBOARD_OUT=$out npx vite build
