#!/usr/bin/env bash
# Makes the recorded runs that launch/replay.sh shows, assets/recordings, with the demo's models.
# Some minutes on two CPU cores; leave the machine alone meanwhile, for the runs keep its speed.
#   bash launch/record.sh --output my-runs --max-new-tokens 64
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

find_python
from_users_folder "$@"
set -- "${ARGUMENTS[@]}"
check_demo_disk
install_package
"$VENV_PYTHON" -m dart_core.demo_target
exec "$VENV_PYTHON" -m app.record "$@"
