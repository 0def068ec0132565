"""Program in place of BLIS that reads its flags and files as BLIS does, and serves nothing."""

import sys

from blis_engine.config import read_inputs
from blis_engine.flags import parse

read_inputs(parse(sys.argv[1:]))
