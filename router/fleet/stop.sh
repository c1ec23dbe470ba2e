group= served= told= here=$(readlink /proc/self/ns/net)
fail() { echo "$*" >&2; exit 1; }
grep -qzxF -e x /dev/null 2>/dev/null; [ $? -eq 1 ] || fail "stop needs a grep that knows -z"
awk 'BEGIN { exit 3 }' 2>/dev/null; [ $? -eq 3 ] || fail "stop needs awk"
[ -n "$here" ] && [ -r /proc/self/stat ] || fail "stop needs /proc"
if [ -f PIDFILE ] && read -r pid start rest <PIDFILE; then
case $pid in 0|1|*[!0-9]*) pid=;; esac
now=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null | cut -d' ' -f20)
if [ -z "$now" ] || [ "$now" = "$start" ]; then group=$pid; fi; fi
elsewhere() {
[ "$(readlink "/proc/$1/ns/net" 2>/dev/null)" = "$here" ] || return 0
grep -qz -e '^VARIABLE=' "/proc/$1/environ" 2>/dev/null && return 0
first=$(tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null | head -n 1); [ "${first##*/}" = ssh ]; }
look() {
found=$(grep -lzxF -e MARK /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
if [ -n "$group" ]; then found="$found $(cat /proc/[0-9]*/stat 2>/dev/null | awk -v g="$group" '{ p = $1; sub(/^.*\) /, "") } ($1 !~ /[ZX]/ || $18 > 1) && ($3 == g || $4 == g) { print p }')"; fi
set -- $found; mine=" $* "; like=
for p in $(grep -lzxE -e SERVER /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
tr '\0' '\n' <"/proc/$p/cmdline" 2>/dev/null | awk '{ if (last == "--port" && $0 == "PORT") hit = 1; last = $0 } END { exit !hit }' || continue
case $mine in *" $p "*) served=1;; *) elsewhere "$p" || like="$like $p";; esac; done
if [ -n WRAPPED ]; then for p in $(grep -lzE -e WRAPPED /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3); do
case "$mine$like " in *" $p "*) ;; *) elsewhere "$p" || like="$like $p";; esac; done; fi
[ -n "$served" ] || set -- $* $like
found=$*; }
up() { read -r now rest </proc/uptime; now=${now%.*}; }
up; begin=$now
while :; do look; [ -n "$found" ] || exit 0
up; age=$((now-begin)); [ $age -lt GRACE ] || fail "still there after GRACE s: $(for p in $found; do echo "$p ($(cat "/proc/$p/comm" 2>/dev/null))"; done)"
if [ $age -ge HALF ]; then kill -KILL $found 2>/dev/null; else
for p in $found; do case " $told " in *" $p "*) ;; *) kill -TERM "$p" 2>/dev/null; told="$told $p";; esac; done; fi
sleep 0.2 2>/dev/null || sleep 1; done
