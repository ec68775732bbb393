#!/usr/bin/env bash
# From nothing to small DART and EAGLE3 heads for the demo's target on a CPU, in ten minutes: five of
# them for the target to write its own training text and for the heads to train on it, the rest for
# installing, the target's states and the figures. Arguments win, as of launch/train_dart.sh:
#   bash launch/train_demo.sh --minutes 60 --output my-heads
set -euo pipefail
exec bash "$(dirname "${BASH_SOURCE[0]}")/train_dart.sh" --minutes 5 --output demo-heads \
  --holdout 16 "$@"
