#!/usr/bin/env bash
# PrologSlurmctld: refuses a Slurm job if its tenant may not start another phub job. The tenant is
# the job's Slurm account. slurmctld runs this before it starts the job; with an exit code other
# than 0 it cancels the job of an srun and holds a batch job. A Prolog on the nodes would set the
# node to DRAIN instead.
#
# PHUB_SLURM_CONF (default /etc/phub/slurm.conf) may set:
#   PHUB_ENDPOINT  the daemon (default unix:/run/phub/control.sock)
#   PHUB_TENANT    the tenant of jobs without an account (default "default")
set -euo pipefail
conf="${PHUB_SLURM_CONF:-/etc/phub/slurm.conf}"
# shellcheck source=/dev/null
[[ ! -r "$conf" ]] || . "$conf"
tenant="${SLURM_JOB_ACCOUNT:-}"
[[ -n "$tenant" && "$tenant" != "(null)" ]] || tenant="${PHUB_TENANT:-default}"
# A daemon that does not answer does not stop jobs that may not use it.
tenants="$("${PHUBCTL:-phubctl}" -e "${PHUB_ENDPOINT:-unix:/run/phub/control.sock}" --timeout 5s \
  -o json tenant list)" || exit 0
python3 - "$tenant" "$tenants" <<'PYTHON'
import json
import sys

name, tenants = sys.argv[1], json.loads(sys.argv[2])["tenants"]
tenant = next((each for each in tenants if each["name"] == name), None)
if tenant is None:
    sys.exit(0)  # an account that has no tenant does not use phub
if tenant["state"] != "active":
    sys.exit(f"phub: tenant {name} is {tenant['state']}")
quota = tenant.get("quota", {}).get("jobs")
if quota is not None and int(tenant["usage"]["jobs"]) >= int(quota):
    sys.exit(f"phub: tenant {name} has {tenant['usage']['jobs']} jobs; its quota is {quota}")
PYTHON
