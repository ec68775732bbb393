import os
import sys

from dart_core.cli import main

# The threads of torch's CPU kernels wait for each other many hundred times a step. Where something
# else wants the cores too, spinning while they wait makes a step ten times slower; sleeping costs
# a third at the worst.
if sys.argv[1:2] != ["bench"]:  # that measures transformers' own decoding too, which it would slow
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded, later

sys.exit(main())
