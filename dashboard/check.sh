#!/usr/bin/env bash
# Checks the types, the lock file, and that crates/api/dashboard is the current build. Prints one line per check; the last
# line is `N passed, M failed`.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
passed=0
failed=0

check() {
    local name=$1 log status=0
    shift
    log=$("$@" 2>&1) || status=1
    failed=$((failed + status))
    passed=$((passed + 1 - status))
    printf '%s  %s\n' "$([[ $status -eq 0 ]] && echo ok || printf '%s\nFAIL' "$log")" "$name"
}

without_registry() { ! grep -nE '"resolved"|https?://registry' package-lock.json; }

matches_build() {
    local out
    out=$(mktemp -d)
    trap 'rm -rf "$out"' RETURN
    ./build.sh "$out" && diff -rq "$out" ../crates/api/dashboard
}

test -d node_modules/vite || npm ci --no-audit --no-fund || exit 1
check 'types (svelte-check)' npx svelte-check --fail-on-warnings
check 'no registry in the lock file' without_registry
check 'crates/api/dashboard is the current build (otherwise run dashboard/build.sh)' matches_build
printf '%d passed, %d failed\n' "$passed" "$failed"
exit $((failed > 0))
