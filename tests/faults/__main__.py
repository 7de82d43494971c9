import faulthandler
import sys

from tests.faults import main

faulthandler.enable()
sys.exit(main(*sys.argv[1:]))
