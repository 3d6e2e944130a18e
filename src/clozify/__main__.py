"""`python -m clozify`: the command line."""

from clozify.cli import main

main()
