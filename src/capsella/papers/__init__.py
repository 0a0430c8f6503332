"""The papers as code: recipes of every experiment, printed numbers, runs that can be gone on with, verdicts.

A ``Paper`` is a list of recipes (a ``Plan`` and its seeds each), of tables and figures that show them, and of claims. Results
are records on disk, one for each recipe and seed; reports are made from them alone.
"""
