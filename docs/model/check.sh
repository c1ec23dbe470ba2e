#!/usr/bin/env bash
# Checks handoff.pml with spin: the model holds, each mutation breaks it, and
# without the fence a gate may stay for ever. Exits 1 at the first surprise.
set -euo pipefail
model=$(cd "$(dirname "$0")" && pwd)/handoff.pml
for program in spin gcc; do
	command -v "$program" >/dev/null || { echo "$program is missing; on Debian: apt-get install spin gcc" >&2; exit 2; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# verify CLAIM WANT [-DFLAG...]: WANT is holds or fails.
verify() {
	local claim=$1 want=$2
	shift 2
	spin -a "$@" "$model" >spin.log 2>&1 || { cat spin.log; exit 1; }
	gcc -O2 -w -DCOLLAPSE -DNFAIR=3 -o pan pan.c
	local fair=()
	if [[ $claim == opens ]]; then fair=(-f); fi
	./pan -a "${fair[@]}" -m300000 -N "$claim" >pan.log 2>&1 || true
	local got=fails
	if grep -q 'errors: 0$' pan.log; then got=holds; fi
	if ! grep -q 'errors: ' pan.log || grep -q 'max search depth too small' pan.log; then got="is undecided"; fi
	printf '%-6s %-24s %-6s %12s states\n' "$claim" "${*:-as built}" "$got" "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' pan.log)"
	if [[ $got != "$want" ]]; then
		echo "want: $claim $want with ${*:-no mutation}; replay: spin ${*} -t -p $model" >&2
		exit 1
	fi
}

verify safe holds
for mutation in NO_QUARANTINE FREE_AT_TIMEOUT DEATH_IS_PROOF FACT_FROM_ROUTER ACK_AT_RESERVE NO_SEAL PORT_REUSE HIDDEN_RETRY; do
	verify safe fails "-D$mutation"
done
verify opens holds -DFAULTS=0
verify opens fails -DFAULTS=0 -DNO_FENCE
echo "the model is as expected"
