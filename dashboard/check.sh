#!/usr/bin/env bash
# Do the types hold, does the lock file name no registry, and are the files in crates/api/dashboard those that the sources
# build? One line a check; the last is `N passed, M failed`.
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

as_built() {
    local out
    out=$(mktemp -d)
    trap 'rm -rf "$out"' RETURN
    ./build.sh "$out" && diff -rq "$out" ../crates/api/dashboard
}

test -d node_modules/vite || npm ci --no-audit --no-fund || exit 1
check 'the types hold (svelte-check)' npx svelte-check --fail-on-warnings
check 'the lock file names no registry' without_registry
check 'crates/api/dashboard is what the sources build (dashboard/build.sh makes it so)' as_built
printf '%d passed, %d failed\n' "$passed" "$failed"
exit $((failed > 0))
