#!/usr/bin/env bash
# Epilog: evicts the phub jobs that a Slurm job has left: slurm-<job id>, and names that begin with
# slurm-<job id>. of any tenant. Settings: see prolog-slurmctld.sh. Always succeeds: an
# Epilog that fails sets the node to DRAIN.
set -uo pipefail
conf="${PHUB_SLURM_CONF:-/etc/phub/slurm.conf}"
# shellcheck source=/dev/null
[[ ! -r "$conf" ]] || . "$conf"
[[ "${SLURM_JOB_ID:-}" =~ ^[0-9]+$ ]] || exit 0
phubctl() {
  command "${PHUBCTL:-phubctl}" -e "${PHUB_ENDPOINT:-unix:/run/phub/control.sock}" --timeout 5s "$@"
}
phubctl -o json job list | python3 -c '
import json, re, sys
for job in json.load(sys.stdin)["jobs"]:
    if job["state"] == "running" and re.fullmatch(rf"slurm-{sys.argv[1]}(\..*)?", job["name"]):
        print(job["tenant"], job["name"])' "$SLURM_JOB_ID" |
  while read -r tenant name; do
    phubctl --tenant "$tenant" job evict "$name" --yes --reason "its Slurm job has ended"
  done
exit 0
